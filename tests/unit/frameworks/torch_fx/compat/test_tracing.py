"""Traces of functions, and what is noted in them."""

from typing import Any
from weakref import WeakSet

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from amprewrite.frameworks.torch_fx.compat import settings, tracing
from tests.torch_programs import Program, graph_of


def x() -> Any:
    return torch.randn(4, 8)


aten = torch.ops.aten


def test_a_checkpoint_has_gradients() -> None:
    value = x().requires_grad_()
    tracing.checkpointed(torch.exp, value).sum().backward()
    assert torch.equal(value.grad, value.detach().exp())


def test_a_function_is_traced_before_decomposition() -> None:
    weight = torch.randn(8, 8)
    graph = tracing.trace_pre_dispatch(nn.functional.linear, (x(), weight))
    targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert targets == ["aten.linear.default"]


def test_a_function_may_be_traced_after_decomposition() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.nn.functional.linear(x, w)

    arguments = (x(), torch.randn(8, 8))
    graph = tracing.trace_below_transforms(function, arguments)
    targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert targets
    assert "aten.linear.default" not in targets


def test_function_transforms_are_seen_in_a_graph() -> None:
    seen: list[bool] = []

    def backend(module: Any, inputs: Any) -> Any:
        del inputs
        seen.append(tracing.uses_transforms(module))
        return module.forward

    torch.compiler.reset()
    for function in (torch.vmap(torch.exp), torch.exp):
        torch.compile(Program(lambda _, x, f=function: f(x)), backend=backend)(x())
    assert seen == [True, False]


def test_a_higher_order_op_is_recorded_with_its_body() -> None:
    body = graph_of(lambda _, x: x.exp())

    def region(module: Any, value: Any) -> Any:
        return module(value)

    def function(value: Any) -> Any:
        def run() -> Any:
            return value.exp()

        return tracing.record_higher_order(region, (body, value), {}, run) + 1

    graph = tracing.trace_pre_dispatch(function, (x(),))
    (call,) = graph.graph.find_nodes(op="call_function", target=region)
    assert call.args[0].op == "get_attr"
    assert call.meta["val"].shape == (4, 8)


def test_another_graph_may_be_traced_inside() -> None:
    inner: list[Any] = []

    def function(value: Any) -> Any:
        with tracing.untraced():
            inner.append(tracing.trace_pre_dispatch(torch.exp, (torch.ones(2),)))
        return value + 1

    outer = tracing.trace_pre_dispatch(function, (x(),))
    names = [[n.name for n in g.graph.nodes] for g in (outer, inner[0])]
    assert "add" in names[0]
    assert "exp" not in names[0]
    assert "exp" in names[1]


def test_arguments_may_be_changed_before_each_op_and_casts_are_noted() -> None:
    def change(target: Any, args: Any, kwargs: Any, cast: Any) -> Any:
        if target is torch.ops.aten.exp.default:
            args = (cast(args[0], torch.float64),)
        return args, kwargs, ()

    with tracing.before_each_op(change), traceback.preserve_node_meta():
        module = tracing.trace_pre_dispatch(lambda x: x.exp().to(torch.half), (x(),))
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert calls[1].target is torch.ops.aten.exp.default
    assert calls[1].args == (calls[0],)
    assert [tracing.is_promotion(n) for n in calls] == [True, False, False]
    assert [n.meta["val"].dtype for n in calls[:2]] == [torch.float64] * 2


def test_what_an_op_writes_to_a_cast_is_copied_back() -> None:
    def change(target: Any, args: Any, kwargs: Any, cast: Any) -> Any:
        if target is not torch.ops.aten.exp_.default:
            return args, kwargs, ()
        made = cast(args[0], torch.float64, written=True)
        return (made,), kwargs, [(args[0], made)]

    with tracing.before_each_op(change), traceback.preserve_node_meta():
        module = tracing.trace_pre_dispatch(lambda x: x.exp_(), (x(),))
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert [str(n.target) for n in calls] == [
        "aten.to.dtype",
        "aten.exp_.default",
        "aten.copy_.default",
    ]
    assert not any(map(tracing.is_promotion, calls))


def test_dispatched_kernels_are_compared() -> None:
    x, add = torch.ones(2, 3, device="meta"), torch.ops.aten.add.Tensor
    of = tracing.dispatched
    assert of(add, (x, x), {}) == of(torch.add, (x, x), {})
    assert of(add, (x, x), {}) != of(torch.add, (x, x), {"alpha": 2})
    assert of(add, (x, x), {}) != of(torch.mul, (x, x), {})
    assert of(add, (x, x), {}) != of(add, (x, x + 1), {})
    assert of(torch.ops.aten.item.default, (x[0, 0],), {}) is None
    assert of(torch.add, (x, "a"), {}) is None


def test_a_mode_that_sees_ops_is_noticed() -> None:
    flops = pytest.importorskip("torch.utils.flop_counter")
    assert not tracing.in_dispatch_mode()
    with flops.FlopCounterMode(display=False):
        assert tracing.in_dispatch_mode()
    assert not tracing.in_dispatch_mode()


def test_tensors_have_their_nodes_and_extents_their_numbers() -> None:
    found: list[Any] = []

    class Model(nn.Module):
        def forward(self, given: Any) -> Any:
            made = given.exp()
            nodes = [n for t, n in tracing.tensors_of(tracers[0]) if t is made]
            found.extend(node.target for node in nodes)
            found.extend(tracing.number_of(n) for n in tracers[0].graph.nodes)
            return made.reshape(given.shape[0], -1)

    batch = torch.export.Dim("batch")
    tracers, ops = list[Any](), list[Any]()
    noting = tracing.noting_tracers(tracers.append)
    with noting, settings.noting_ops(lambda func, *_: ops.append(func)):
        torch.export.export(Model(), (x(),), dynamic_shapes=({0: batch},), strict=False)
    assert found[0] == aten.exp.default
    assert set(found[1:]) == {None}
    assert aten.exp.default in ops
    assert {id(tracer) for tracer in tracers} == {id(tracers[0])}


def test_symbolic_extents_stand_for_those_of_the_example() -> None:
    def function(given: Any) -> Any:
        return given.new_ones(given.shape[0])

    made: Any = make_fx(function, tracing_mode="symbolic")(x())
    numbers = [tracing.number_of(node) for node in made.graph.nodes]
    assert [number for number in numbers if number is not None] == [4]


class Holder:
    """Object that refers to a tensor."""

    kept: Any = None


def test_tensors_that_the_user_refers_to_are_told_from_those_of_torch() -> None:
    made = torch.ones(2, requires_grad=True).exp()  # autograd's record has its result
    record = made.grad_fn
    alive = WeakSet([made])
    del made
    assert record is not None
    assert not tracing.leaks(alive)
    Holder.kept = torch.ones(2)
    assert list(tracing.leaks(WeakSet([Holder.kept])))
    Holder.kept = None


def test_bodies_that_dynamo_captures_are_told_from_regions_of_export() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    class Region(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                return x * 2

    x = (torch.ones(2),)
    for model, captured in ((Branches(), True), (Region(), False)):
        program = torch.export.export(model, x, strict=False)
        parts = program.module().modules()
        assert any(map(tracing.has_captured_bodies, parts)) is captured

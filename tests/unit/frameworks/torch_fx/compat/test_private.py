"""Every private name of torch that is used: a new torch breaks these tests first."""

import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import traceback

from amprewrite.frameworks.torch_fx.compat import private
from tests.torch_programs import Program

aten = torch.ops.aten
FUNCTIONS = [
    name
    for name, found in vars(private).items()
    if inspect.isfunction(found)
    and found.__module__ == private.__name__
    and not name.startswith("_")
]


def x() -> Any:
    return torch.randn(4, 8)


def graph_of(function: Any, *args: Any) -> Any:
    program = torch.export.export(
        Program(function).eval(), args or (x(),), strict=False
    )
    return program.module(check_guards=False)


def fake(value: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: TID251

    return FakeTensorMode().from_tensor(value)


def test_every_function_has_a_test() -> None:
    text = Path(__file__).read_text("utf-8")
    assert not [name for name in FUNCTIONS if f"private.{name}(" not in text]


def test_trees_are_mapped_flattened_and_built_again() -> None:
    tree = {"a": [1, (2, None)], "b": 3}
    leaves, structure = private.pytree.tree_flatten(tree)
    assert private.pytree.tree_leaves(tree) == leaves
    assert private.pytree.tree_unflatten(leaves, structure) == tree
    doubled = private.pytree.tree_map(lambda n: n and 2 * n, tree)
    assert doubled == {"a": [2, (4, None)], "b": 6}


def test_kinds_of_operators_are_told_apart() -> None:
    assert private.is_overload(aten.add.Tensor)
    assert not private.is_overload(aten.add)
    region = torch.ops.higher_order.wrap_with_set_grad_enabled
    assert private.is_higher_order(region)
    assert not private.is_higher_order(aten.add.Tensor)


def test_sequences_are_lists_and_tuples() -> None:
    assert private.is_sequence([1])
    assert private.is_sequence(())
    assert not private.is_sequence("ab")


def test_schemas_are_read() -> None:
    names = [(f.name, f.kwarg_only) for f in private.formals(aten.add.Tensor)]
    assert names == [("self", False), ("other", False), ("alpha", True)]
    assert private.formals(aten.add.Tensor)[2].default_value == 1
    assert str(private.formals(aten.add.Tensor)[2].type) == "number"
    assert private.formals(len) == ()
    written = private.formals(aten.add_.Tensor)[0]
    assert written.alias_info.is_write
    assert private.is_mutable(aten.add_.Tensor)
    assert not private.is_mutable(aten.add.Tensor)


def test_arguments_and_the_structure_of_a_call_are_read() -> None:
    graph = graph_of(lambda _, x: torch.add(x, 2.0)).graph
    (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert private.positional(add)[1] == 2.0
    args, kwargs = private.call_structure(graph).in_spec.children()
    assert (args.num_children, kwargs.context) == (1, [])
    assert private.call_structure(torch.fx.Graph()) is None


def test_shapes_are_read_with_their_symbols() -> None:
    assert private.extents(x()) == (4, 8)


def test_storages_are_told_apart() -> None:
    value = x()
    same = private.storage_identity(value.view(-1))
    assert private.storage_identity(value) == same
    assert private.storage_identity(value.clone()) != same
    with pytest.raises((NotImplementedError, RuntimeError)):
        private.storage_identity(torch.eye(2).to_sparse())


def test_writes_are_counted() -> None:
    value = x()
    before = private.writes(value)
    value.view(-1).add_(1)
    assert private.writes(value) == before + 1


def test_modules_and_hidden_buffers_are_listed() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("seen", torch.ones(1))
    model.register_buffer("hidden", torch.ones(1), persistent=False)
    assert private.hidden_buffers(model) == {"hidden"}
    assert list(private.children(model)) == ["0"]
    assert [path for path, _ in private.modules_by_path(model)] == ["", "0"]


def test_tensors_of_a_module_alone_are_at_hand() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    assert private.buffers(model) == private.parameters(model) == {}
    assert list(private.parameters(model[0])) == ["weight", "bias"]
    assert "running_mean" in private.buffers(model[0])


def test_how_a_graph_is_called_can_be_set() -> None:
    structure: Any = {"a": (0, [None, 1]), "b": 2}
    inside, outside = (((0, 1), {}), structure)
    specs = [private.pytree.tree_flatten(one)[1] for one in (inside, outside)]
    graph = torch.fx.Graph()
    parts = [private.structure_of(spec) for spec in specs]
    private.set_call_structure(graph, ["x", "y"], *parts)
    assert list(private.call_structure(graph)) == [["x", "y"], *specs]


def test_arguments_are_mapped_part_by_part() -> None:
    arguments = ([1, slice(2, 3)], {"a": (None,)})
    assert private.map_arguments(arguments, str) == (
        ["1", slice("2", "3", "None")],
        {"a": ("None",)},
    )


def test_hooks_on_gradients_are_counted() -> None:
    model = nn.Linear(2, 2)
    assert private.backward_hooks(model) == 0
    model.register_full_backward_hook(lambda *_: None)
    model.register_full_backward_pre_hook(lambda *_: None)
    assert private.backward_hooks(model) == 2


def test_state_is_shared() -> None:
    model, twin = nn.Sequential(nn.Linear(2, 2)), nn.Module()
    private.share_state(twin, model)
    assert twin.get_parameter("0.weight") is model[0].weight
    model.register_buffer("late", torch.ones(1))
    assert "late" in dict(twin.named_buffers())


@pytest.mark.slow
def test_inductor_compiles_a_graph_and_a_module() -> None:
    value = x()
    graph = graph_of(lambda _, x: (x + 1,), value)
    run = private.compile_with_inductor(graph, [value])
    torch.testing.assert_close(run(value)[0], value + 1)
    model = nn.ReLU()
    private.compile_in_place(model)
    assert torch.equal(model(value), value.relu())


def test_the_random_state_is_given_back() -> None:
    before = torch.get_rng_state()
    with private.fork_rng([]):
        x()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_checkpoint_has_gradients() -> None:
    value = x().requires_grad_()
    private.checkpointed(torch.exp, value).sum().backward()
    assert torch.equal(value.grad, value.detach().exp())


def test_a_function_is_traced_before_decomposition() -> None:
    weight = torch.randn(8, 8)
    graph = private.trace_pre_dispatch(nn.functional.linear, (x(), weight))
    targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert targets == ["aten.linear.default"]


def test_a_function_may_be_traced_after_decomposition() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.nn.functional.linear(x, w)

    arguments = (x(), torch.randn(8, 8))
    graph = private.trace_below_transforms(function, arguments)
    targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert targets
    assert "aten.linear.default" not in targets


def test_function_transforms_are_seen_in_a_graph() -> None:
    seen: list[bool] = []

    def backend(module: Any, inputs: Any) -> Any:
        del inputs
        seen.append(private.uses_transforms(module))
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

        return private.record_higher_order(region, (body, value), {}, run) + 1

    graph = private.trace_pre_dispatch(function, (x(),))
    (call,) = graph.graph.find_nodes(op="call_function", target=region)
    assert call.args[0].op == "get_attr"
    assert call.meta["val"].shape == (4, 8)


def test_another_graph_may_be_traced_inside() -> None:
    inner: list[Any] = []

    def function(value: Any) -> Any:
        with private.untraced():
            inner.append(private.trace_pre_dispatch(torch.exp, (torch.ones(2),)))
        return value + 1

    outer = private.trace_pre_dispatch(function, (x(),))
    names = [[n.name for n in g.graph.nodes] for g in (outer, inner[0])]
    assert "add" in names[0]
    assert "exp" not in names[0]
    assert "exp" in names[1]


def test_arguments_may_be_changed_before_each_op_and_casts_are_noted() -> None:
    def change(target: Any, args: Any, kwargs: Any, cast: Any) -> Any:
        if target is torch.ops.aten.exp.default:
            args = (cast(args[0], torch.float64),)
        return args, kwargs, ()

    with private.before_each_op(change), traceback.preserve_node_meta():
        module = private.trace_pre_dispatch(lambda x: x.exp().to(torch.half), (x(),))
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert calls[1].target is torch.ops.aten.exp.default
    assert calls[1].args == (calls[0],)
    assert [private.is_promotion(n) for n in calls] == [True, False, False]
    assert [n.meta["val"].dtype for n in calls[:2]] == [torch.float64] * 2


def test_what_an_op_writes_to_a_cast_is_copied_back() -> None:
    def change(target: Any, args: Any, kwargs: Any, cast: Any) -> Any:
        if target is not torch.ops.aten.exp_.default:
            return args, kwargs, ()
        made = cast(args[0], torch.float64, written=True)
        return (made,), kwargs, [(args[0], made)]

    with private.before_each_op(change), traceback.preserve_node_meta():
        module = private.trace_pre_dispatch(lambda x: x.exp_(), (x(),))
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert [str(n.target) for n in calls] == [
        "aten.to.dtype",
        "aten.exp_.default",
        "aten.copy_.default",
    ]
    assert not any(map(private.is_promotion, calls))


def test_what_is_uncompiled_is_not_traced_by_what_is_around():
    seen: list[bool] = []

    def inner(x: Any) -> Any:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    kept = private.uncompiled(inner)
    compiled = torch.compile(lambda x: kept(x) * 2, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert seen == [False]


def test_results_alias_says_what_a_schema_declares_to_be_a_view() -> None:
    aten = torch.ops.aten
    assert private.results_alias(aten.reshape.default)
    assert private.results_alias(aten.to.dtype)
    assert not private.results_alias(aten.clone.default)
    assert not private.results_alias(aten.add_.Tensor)

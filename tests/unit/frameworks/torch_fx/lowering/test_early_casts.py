"""Casts that stand before the copies that repeat their operand."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.simplify import MOVED, cast_early
from tests.torch_programs import Program

aten = torch.ops.aten
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def graph_of(forward: Any, *args: Any) -> Any:
    """Return a program that was exported, without its checks."""
    program = torch.export.export(Program(forward, held=torch.ones(2, 3, 4)), args)
    module: Any = program.module()
    checks = {"op": "call_function", "target": aten._assert_tensor_metadata.default}
    for kind in {"op": "call_module"}, checks:  # of extents, and of traced dtypes
        for node in module.graph.find_nodes(**kind):
            module.graph.erase_node(node)
    return module


def moved(forward: Any, *args: Any) -> list[int]:
    """Return the elements that each cast of a program reads now, where one moved.

    The program gives the same bits, strides and dtypes.
    """
    module = graph_of(forward, *args)
    wanted = module(*args)
    found = cast_early(module.graph, module)
    module.graph.lint()
    module.recompile()
    result = module(*args)
    assert torch.equal(result, wanted)
    assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
    casts = module.graph.find_nodes(op="call_function", target=aten.to.dtype)
    assert sum(len(one.ops) for one in found) <= len(casts)
    assert all(one.what == MOVED for one in found)
    return [cast.args[0].meta["val"].numel() for cast in casts] if found else []


def shared(x: Any, groups: int = 4) -> Any:
    """Return keys that several heads read."""
    batch, heads, width = x.shape
    wide = x[:, :, None].expand(batch, heads, groups, width)
    return wide.reshape(batch, heads * groups, width)


def test_keys_that_heads_share_are_cast_before_they_are_repeated() -> None:
    assert moved(lambda _, x: shared(x * 2).to(torch.bfloat16), X) == [24]


@pytest.mark.parametrize(
    "repeat",
    [
        lambda x: x.repeat(1, 5, 1),
        lambda x: x.repeat_interleave(5, dim=1),
        lambda x: shared(x).transpose(1, 2).contiguous(),
        lambda x: shared(x.transpose(1, 2)),
        lambda x: shared(shared(x)),
    ],
)
def test_other_copies(repeat: Any) -> None:
    assert moved(lambda _, x: repeat(x.exp()).half(), X) == [24]


def test_metadata_says_what_runs() -> None:
    module = graph_of(lambda _, x: shared(x * 2).to(torch.bfloat16), X)
    cast_early(module.graph, module)
    module.recompile()
    seen: dict[str, Any] = {}

    class Watch(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            seen[n.name] = super().run_node(n)
            return seen[n.name]

    Watch(module).run(X)
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and value is not None:
            real = seen[node.name]
            assert (value.dtype, value.shape) == (real.dtype, real.shape)
            assert value.stride() == real.stride()


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: (x * 2).reshape(6, 4).to(torch.bfloat16),  # no copy
        lambda _, x: shared(x.bfloat16()).float(),  # to more bytes
        lambda _, x: shared(x.half()).bfloat16(),  # to as many
        lambda _, x: (x * 2)[:, :, None].expand(2, 3, 4, 4).to(torch.bfloat16),  # gaps
        lambda _, x: shared(x.mT.mT[:, :, ::2]).to(torch.bfloat16),  # gaps above
    ],
)
def test_others_stay(forward: Any) -> None:
    assert not moved(forward, X)


def test_a_value_that_others_read_is_copied_for_them() -> None:
    def forward(_: Any, x: Any) -> Any:
        wide = shared(x * 2)
        return wide.to(torch.bfloat16) * wide.sum().to(torch.bfloat16)

    assert not moved(forward, X)


def test_inputs_may_have_other_strides_later() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.linear(x[:, None].expand(2, 5, 3, 4).view(2, 5, 12).contiguous())

    assert not moved(lambda _, x: shared(x).to(torch.bfloat16), X)
    assert not moved(lambda _, x: shared(x.transpose(0, 1)).to(torch.bfloat16), X)
    model = Program(forward, linear=nn.Linear(12, 4)).eval()
    made: Any = amprewrite.convert(model, args=(X,))
    windows = torch.randn(30).unfold(0, 12, 6)[:2].view(2, 3, 4)
    with torch.no_grad():
        made(X)
        torch.testing.assert_close(made(windows), model(windows), rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_gradients_are_summed_as_in_the_plan() -> None:
    def forward(_: Any, x: Any) -> Any:
        return (x * 1).repeat(64, 1, 1).half()

    grads: list[Any] = []
    for lowering in True, False:
        model = Program(forward).eval()
        made: Any = amprewrite.convert(model, args=(X,), lowering=lowering)
        x = X.clone().requires_grad_()
        (made(x).float() * 2000).sum().backward()
        grads.append(x.grad)
        with torch.no_grad():
            made(X)
        names = [one.name for one in made.plan.lowerings]
        assert ("early_casts" in names) == lowering
    assert torch.equal(grads[0], grads[1])
    assert float(grads[0].max()) == 128000


def test_values_that_are_written_to_stay() -> None:
    def above(_: Any, x: Any) -> Any:
        kept = x * 2
        wide = shared(kept)
        kept.add_(1)
        return wide.to(torch.bfloat16)

    def below(_: Any, x: Any) -> Any:
        return shared(x * 2).to(torch.bfloat16).add_(1)

    def given(self: Any, x: Any) -> Any:
        wide = shared(self.held)
        x.add_(1)  # it may be that buffer
        return wide.to(torch.bfloat16)

    assert not moved(above, X)
    assert not moved(below, X)
    assert not moved(given, X.clone())


def keyed() -> Any:
    """Return a model with a low layer that reads repeated values."""

    def forward(self: Any, x: Any) -> Any:
        return self.linear(shared(x * 2))

    return Program(forward, linear=nn.Linear(4, 4)).eval()


def test_symbolic_extents_stay() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    made: Any = amprewrite.convert(
        keyed(), args=(X,), dynamic_shapes={"args": ({0: batch},)}
    )
    with torch.no_grad():
        made(X)
    assert "early_casts" not in {one.name for one in made.plan.lowerings}


def test_a_converted_model_casts_early() -> None:
    model = keyed()
    made: Any = amprewrite.convert(model, args=(X,))
    plain: Any = amprewrite.convert(model, args=(X,), lowering=False)
    with torch.no_grad():
        assert torch.equal(made(X), plain(X))
    assert [one.name for one in made.plan.lowerings] == ["early_casts"]
    (name,) = made.plan.lowerings[0].ops
    assert name not in made.plan.by_op  # a cast of the plan

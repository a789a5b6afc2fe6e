"""Values that depend on no input."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.frameworks.torch_fx.lowering import simplify
from amprewrite.frameworks.torch_fx.lowering.flat_runner import flat_runner
from amprewrite.frameworks.torch_fx.lowering.simplify import FOLDED, fold_constants
from tests.torch_programs import relative_error

X = torch.linspace(-1, 1, 16).reshape(4, 4)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("written", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        mask = torch.full((4, 4), -1.0).triu(1) * 2
        return x * self.weight + mask + self.written


def written_view(x: Tensor) -> Tensor:
    base = torch.zeros(4, 4)
    before = base.view(16) + 1
    base.view(16)[:4].add_(x[0])
    return x + base.view(16).reshape(4, 4) + before.view(4, 4)


def constant_output(x: Tensor) -> Any:
    table = torch.arange(4.0)
    return x + table, table.view(2, 2), table * 2


def drawn(x: Tensor) -> Tensor:
    return x + torch.rand(4, 4)


def shared(x: Tensor) -> Any:
    """Return a value that may be a view of a constant."""
    (table, _) = torch.broadcast_tensors(torch.arange(4.0), x)
    return table, x + torch.arange(4.0) * 3


def graph_of(function: Any, *names: str) -> tuple[Any, Any, list[Any]]:
    """Return the module, its folded graph and the folded nodes."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return function(x)

    model = function if isinstance(function, nn.Module) else Model()
    module: Any = torch.export.export(model, (X,)).module()
    fold_constants(module.graph, module, names)
    return module, module.graph, [n for n in module.graph.nodes if FOLDED in n.meta]


def run(module: Any, graph: Any) -> Any:
    structure = graph._codegen.pytree_info.out_spec
    return flat_runner(module, graph, structure)(X)


def test_a_mask_is_computed_once_and_what_may_be_written_is_not() -> None:
    module, graph, folded = graph_of(Masked())
    assert len(folded) == 1
    left = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    assert not any("triu" in name or "full" in name for name in left)
    assert torch.equal(run(module, graph), Masked()(X))
    module.weight.data.mul_(2)
    module.written.add_(1)
    assert relative_error(run(module, graph), Masked()(X) + X + 1) < 1e-6


@pytest.mark.parametrize(
    ("function", "count"),
    [(written_view, 0), (constant_output, 0), (drawn, 0), (shared, 1)],
)
def test_what_a_caller_or_an_op_writes_to_is_made_each_time(
    function: Any, count: int
) -> None:
    module, graph, folded = graph_of(function)
    assert len(folded) == count
    for _ in range(2):
        torch.manual_seed(0)
        found = run(module, graph)
        torch.manual_seed(0)
        expected = function(X)
        several = found if isinstance(found, tuple) else (found,)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        assert all(map(torch.equal, several, wanted))
        for value in several[1:]:  # what a caller may do
            value.add_(1)


def test_named_constants_are_folded() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.table.exp()

    module, _, folded = graph_of(Model())
    assert not folded
    names = [k for k, _ in module.named_buffers()]
    names += [k for k, v in vars(module).items() if isinstance(v, Tensor)]
    _, graph, folded = graph_of(Model(), *names)
    assert len(folded) == 1
    assert torch.equal(run(module, graph), Model()(X))


def test_large_values_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplify, "MOST_BYTES", 4 * 4 * 4 - 1)
    assert not graph_of(Masked())[2]
    monkeypatch.setattr(simplify, "MOST_BYTES", 4 * 4 * 4)
    assert graph_of(Masked())[2]


def test_values_can_be_trained_with_after_an_inference_call() -> None:
    with torch.inference_mode():
        module, graph, folded = graph_of(Masked())
    assert folded
    run(module, graph).sum().backward()
    assert torch.equal(module.weight.grad, X.sum(0))

"""Captures that share no function with other models; functions that none enters."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.compat import compiling
from amprewrite.frameworks.torch_fx.compat.compiling import compiled
from tests.torch_programs import graph_of


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any, *, times: float = 2.0) -> Any:
        return self.inner(x) * times


def captures(model: nn.Module) -> tuple[Any, list[Any]]:
    """Return ``model`` as it is captured, and the graphs that it is captured as."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    return compiled(model, backend), graphs


@pytest.mark.parametrize("make", [Doubled, lambda: nn.Sequential(nn.Linear(4, 4))])
def test_every_model_is_captured_whatever_their_number(make: Any) -> None:
    with torch._dynamo.config.patch(
        recompile_limit=2, fail_on_recompile_limit_hit=True
    ):
        for _ in range(4):
            model = make()
            run, graphs = captures(model)
            x = torch.randn(2, 4)
            torch.testing.assert_close(run(x), model(x))
            assert len(graphs) == 1


def test_defaults_and_keywords_stay() -> None:
    model = Doubled()
    run, graphs = captures(model)
    x = torch.randn(2, 4)
    torch.testing.assert_close(run(x, times=3.0), model(x, times=3.0))
    assert len(graphs) == 1


def test_hooks_run() -> None:
    model = Doubled()
    model.register_forward_hook(lambda *_: _[2] + 1)
    run, _ = captures(model)
    x = torch.randn(2, 4)
    torch.testing.assert_close(run(x), model.inner(x) * 2 + 1)


def test_a_model_of_a_script_that_has_no_module(tmp_path: Path) -> None:
    import runpy  # as a launcher does

    script = tmp_path / "model.py"
    script.write_text(
        "from torch import nn\n"
        "SCALE = 2.0\n"
        "class Model(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * SCALE\n"
    )
    model = runpy.run_path(str(script))["Model"]()
    run, graphs = captures(model)
    x = torch.randn(2, 4)
    torch.testing.assert_close(run(x), x * 2)
    assert len(graphs) == 1


def test_a_forward_of_a_namespace_without_a_name_is_captured() -> None:
    space: dict[str, Any] = {}
    exec("def forward(self, x):\n    return self.inner(x)\n", space)
    model = type("Made", (Doubled,), space)()
    run, graphs = captures(model)
    x = torch.randn(2, 4)
    torch.testing.assert_close(run(x), model(x))
    assert len(graphs) == 1


@pytest.mark.slow
def test_inductor_compiles_a_graph_and_a_module() -> None:
    value = torch.randn(4, 8)
    graph = graph_of(lambda _, x: (x + 1,), value)
    run = compiling.compile_with_inductor(graph, [value])
    torch.testing.assert_close(run(value)[0], value + 1)
    model = nn.ReLU()
    compiling.set_called(model, compiling.compiled_function(compiling.called(model)))
    assert torch.equal(model(value), value.relu())


class Scaled(nn.Module):
    """Reads a number and a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        return x * self.scale + self.shift


@pytest.mark.slow  # compiles C++
def test_of_a_function_that_stays_as_it_is_arguments_and_tensors_are_compared() -> None:
    torch.compiler.reset()
    model, x = Scaled(), torch.ones(4)
    fixed = compiling.compiled_function(compiling.called(model), fixed=True)
    plain = compiling.compiled_function(compiling.called(model))
    for given in (x, x.double(), torch.ones(2, 3), x[::2]):
        assert torch.equal(fixed(given), 2 * given)
        assert fixed(given).dtype == given.dtype
        assert torch.equal(plain(given), 2 * given)
    (gradient,) = torch.autograd.grad(fixed(given := x.requires_grad_()).sum(), given)
    assert gradient.tolist() == [2.0] * 4
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fixed(x), 2 * x)
    model.shift = torch.ones((), dtype=torch.float64)
    assert fixed(torch.ones(4).double()).tolist() == [3.0] * 4
    model.scale = 5.0
    assert fixed(torch.ones(4).double()).tolist() == [3.0] * 4, "it is no argument"
    assert plain(torch.ones(4).double()).tolist() == [6.0] * 4


def test_what_is_uncompiled_is_not_traced_by_what_is_around():
    seen: list[bool] = []

    def inner(x: Any) -> Any:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    kept = compiling.uncompiled(inner)
    run = torch.compile(lambda x: kept(x) * 2, backend="eager")
    assert run(torch.ones(2)).tolist() == [4.0, 4.0]
    assert seen == [False]


def test_weights_are_constants_of_the_compiler_for_a_while() -> None:
    from torch._inductor import config  # noqa: TID251  # the setting itself

    untyped: Any = config
    assert not untyped.freezing
    with compiling.freezing():
        assert untyped.freezing
    assert not untyped.freezing

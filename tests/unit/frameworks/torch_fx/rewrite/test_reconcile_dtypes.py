"""Kernels that do not do what the plan says: the graph is mended, the plan says so."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning
from tests.torch_programs import Program, in_full, relative_error

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative."""


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Custom ops: one always gives float32, one takes nothing else, one is honest."""
    with torch.library._scoped_library("amptest", "FRAGMENT") as found:
        for name in ("widen", "strict", "honest"):
            found.define(f"{name}(Tensor x) -> Tensor")

        def widen(x: Any) -> Any:
            return x.float() * 2

        def strict(x: Any) -> Any:
            if x.dtype != torch.float32:
                msg = f"strict has no kernel for {x.dtype}"
                raise RuntimeError(msg)
            return x * 2

        def honest(x: Any) -> Any:
            return x * 2

        for function in (widen, strict, honest):
            found.impl(function.__name__, function, "CompositeExplicitAutograd")

        def widen_first(x: Any, y: Any) -> Any:
            return widen(x), y * 2

        def strict_pair(x: Any, y: Any) -> Any:
            return strict(x), y * 2

        for function in (widen_first, strict_pair):
            found.define(f"{function.__name__}(Tensor x, Tensor y) -> (Tensor, Tensor)")
            found.impl(function.__name__, function, "CompositeExplicitAutograd")
        yield torch.ops.amptest


def converted(op: Any) -> tuple[Any, Any, Any]:
    model = Program(lambda m, x: m.b(op(m.a(x))), a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    x = torch.randn(4, 8)
    name = f"amptest.{op.__name__}.default"
    program = amprewrite.convert(
        model.eval(), args=(x,), overrides=[{"native": name, "class": "allow"}]
    )
    return model, program, x


def test_a_kernel_that_gives_another_dtype_has_its_result_cast(library: Any) -> None:
    with pytest.warns(AmpWarning, match="gives float32 instead of bfloat16"):
        model, program, x = converted(library.widen)
    op = "widen (amptest.widen.default)"
    cast = f"{op} gives float32 instead of bfloat16; its result is cast"
    assert program.plan.warnings == (cast,)
    assert relative_error(in_full(program, x), in_full(model, x)) < 2 * ROUNDING


def test_a_kernel_that_refuses_low_runs_as_traced(library: Any) -> None:
    with pytest.warns(AmpWarning):
        model, program, x = converted(library.strict)
    op = "strict (amptest.strict.default)"
    refusal = "strict has no kernel for torch.bfloat16; its result is cast"
    assert program.plan.warnings == (f"{op} runs as traced: {refusal}",)
    assert relative_error(in_full(program, x), in_full(model, x)) < 2 * ROUNDING


@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("widen_first", "gives float32 instead of bfloat16"),
        ("strict_pair", "runs as traced: strict has no kernel for torch.bfloat16"),
    ],
)
def test_each_of_several_results_has_the_dtype_of_the_plan(
    library: Any, name: str, done: str
) -> None:
    def forward(m: Any, x: Any) -> Any:
        one, two = getattr(library, name)(m.a(x), m.b(x))
        return m.b(one) + m.a(two)

    model = Program(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    x, op = torch.randn(4, 8), f"amptest.{name}.default"
    overrides = [{"native": op, "class": "allow"}]
    with pytest.warns(AmpWarning, match=done):
        program = amprewrite.convert(model, args=(x,), overrides=overrides)
    assert program.plan.warnings == (f"{name} ({op}) {done}; its result is cast",)
    assert relative_error(in_full(program, x), in_full(model, x)) < 2 * ROUNDING


def test_a_kernel_that_does_what_the_plan_says_is_left_alone(library: Any) -> None:
    model, program, x = converted(library.honest)
    assert program.plan.warnings == ()
    assert program.plan.by_op["honest"].precision == "bfloat16"
    assert relative_error(in_full(program, x), in_full(model, x)) < 2 * ROUNDING


def test_a_custom_op_without_an_override_runs_as_traced(library: Any) -> None:
    model = Program(lambda m, x: library.strict(m.a(x)), a=nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    program = amprewrite.convert(model, args=(x,))
    assert [d.native for d in program.plan.unclassified] == ["amptest.strict.default"]
    assert relative_error(in_full(program, x), in_full(model, x)) < 2 * ROUNDING


def test_every_test_holds_the_dtypes_of_its_rewrites_to_fake_tensors() -> None:
    from amprewrite.frameworks.torch_fx.rewrite import write

    # A fixture of all tests wraps it.
    assert write.reconcile.__name__ == "reconciled"


@pytest.mark.skipif(
    torch.__version__.startswith(("2.11.", "2.12.")),
    reason="torch.export below 2.13 refuses attention with a length that varies",
)
def test_attention_with_a_mask_is_low_where_extents_vary() -> None:
    """The meta function of baddbmm calls other ops on the symbolic extents."""
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, mask = torch.randn(4, 6, 8), torch.zeros(4, 6, dtype=torch.bool)
    extents = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = amprewrite.convert(
        model,
        args=(x, x, x, mask),
        dynamic_shapes=dict.fromkeys(
            ("query", "key", "value", "key_padding_mask"), extents
        ),
    )
    assert program.plan.warnings == ()
    assert program.rewritten is not None
    nodes = program.rewritten.graph.find_nodes(
        op="call_function", target=torch.ops.aten.baddbmm.default
    )
    assert [node.meta["val"].dtype for node in nodes] == [torch.bfloat16]
    assert relative_error(program(x, x, x, mask), model(x, x, x, mask)) < 4 * ROUNDING

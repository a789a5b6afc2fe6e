"""The lines of a summary for a program of layers."""

from textwrap import dedent

from amprewrite.plan.lines import cast_line, compound_lines, layer_lines
from tests.plan_text import plan_of


def layers(count: int, inner: str = "exp") -> str:
    lines = ["%x: f32[4,8] input", "%w: f32[8,8] parameter"]
    value = "x"
    for n in range(count):
        where = f'| path="h.{n}.mlp.fc" source="m.py:2"'
        calls = f'{where[:-1]}" calls=["softmax#{n + 1}"]'
        lines += [
            f"linear{n} = linear(%{value}, %w) -> %a{n}: f32[4,8]\n  {where}",
            f"exp{n} = {inner}(%a{n}) -> %b{n}: f32[4,8]\n  {calls}",
            f"div{n} = div(%b{n}) -> %c{n}: f32[4,8]\n  {calls}",
        ]
        value = f"c{n}"
    return "\n".join([*lines, f"return %{value}"])


def test_equal_layers_and_compounds_share_a_line() -> None:
    plan = plan_of(layers(3))
    assert list(compound_lines(plan)) == ["3 x softmax: full (2 ops each)"]
    assert list(layer_lines(plan)) == ["3 x h.*.mlp: 1 bf16, 2 f32, 2 casts"]
    (line,) = cast_line(plan)
    assert line == (
        "heaviest casts: 3 x f32 -> bf16 for linear at h.*.mlp.fc (576 bytes), "
        "3 x bf16 -> f32 for exp at h.*.mlp.fc (576 bytes)"
    )


def test_blocks_of_small_modules_have_the_line_themselves() -> None:
    small = "\n".join(
        f'{part}{n} = sin(%x) -> %{part}{n}: f32[4]\n  | path="h.{n}.{part}"'
        for n in range(2)
        for part in "ab"
    )
    plan = plan_of(f"%x: f32[4] input\n{small}\nreturn %x")
    assert list(layer_lines(plan)) == ["2 x h.*: 2 f32"]


def test_layers_that_differ_are_summed() -> None:
    text = layers(3)
    rule = [{"op_name": "linear1", "class": "deny"}]
    assert list(layer_lines(plan_of(text, overrides=rule))) == [
        "3 x h.*.mlp: 2 bf16, 7 f32, 5 casts in all"
    ]


def test_calls_that_differ_in_precision_are_counted_together() -> None:
    rule = [
        {"op_name": "exp1", "class": "allow"},
        {"op_name": "div1", "class": "allow"},
    ]
    assert list(compound_lines(plan_of(layers(3), overrides=rule))) == [
        "3 x softmax: 2 bf16, 4 f32 (2 ops each)"
    ]


MOVE = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
gelu = gelu(%h) -> %r: f32[4,8]
  | calls=["softmax#1"]
cast = cast(%r) -> %c: f32[4,8]
  | calls=["softmax#1"] dtype_argument="float32" chosen="pinned"
return %c
"""


def test_moves_inside_of_a_compound_have_no_say() -> None:
    assert list(
        compound_lines(plan_of(MOVE, overrides=[{"op": "gelu", "class": "allow"}]))
    ) == ["softmax: bf16 (2 ops)"]


def test_the_smallest_of_many_compounds_share_a_line() -> None:
    names = ("relu", "gelu", "silu", "mish", "elu", "selu", "celu")
    ops = "\n".join(f"{n} = {n}(%x) -> %{n}: f32[4]" for n in names)
    lines = list(compound_lines(plan_of(f"%x: f32[4] input\n{ops}\nreturn %relu")))
    assert lines == [*(f"{n}: full" for n in names[:5]), "also selu: full; celu: full"]


def test_the_largest_modules_are_shown_in_the_order_of_the_program() -> None:
    sizes = {"a": 3, "b": 2, "c": 6, "d": 5, "e": 4, "f": 7}
    ops = "\n".join(
        f'{name}{n} = sin(%x) -> %{name}{n}: f32[4]\n  | path="{name}"'
        for name, count in sizes.items()
        for n in range(count)
    )
    plan = plan_of(f"%x: f32[4] input\n{ops}\nreturn %x")
    assert list(layer_lines(plan)) == dedent("""\
        c: 6 f32
        d: 5 f32
        e: 4 f32
        f: 7 f32""").split("\n")


def test_a_plan_without_ops_has_no_lines() -> None:
    plan = plan_of("return")
    assert [*compound_lines(plan), *layer_lines(plan), *cast_line(plan)] == []

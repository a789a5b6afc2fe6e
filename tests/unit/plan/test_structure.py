"""Compounds by structure: a softmax or a norm that nobody named."""

import pytest

from amprewrite.plan import join_plans
from amprewrite.plan.compounds import structures
from tests.plan_text import plan_of

SOFTMAX = """
%x: f32[4,8] input
amax = amax(%x) -> %m: f32[4,1]
sub = sub(%x, %m) -> %s: f32[4,8]
exp = exp(%s) -> %e: f32[4,8]
sum = sum(%e) -> %t: f32[4]
expand = expand(%t) -> %u: f32[4,8]
div = div(%e, %u) -> %p: f32[4,8]
relu = relu(%p) -> %r: f32[4,8]
return %r
"""
RMS = """
%x: f32[4,8] input
%y: f32[4,8] input
square = square(%x) -> %q: f32[4,8]
mean = mean(%q) -> %m: f32[4,1]
add = add(%m) -> %a: f32[4,1]
rsqrt = rsqrt(%a) -> %r: f32[4,1]
mul = mul(%x, %r) -> %n: f32[4,8]
return %n
"""
LAYER = """
%x: f32[4,8] input
mean = mean(%x) -> %m: f32[4,1]
sub = sub(%x, %m) -> %c: f32[4,8]
square = mul(%c, %c) -> %q: f32[4,8]
sum = sum(%q) -> %t: f32[4,1]
over = div(%t) -> %v: f32[4,1]
add = add(%v) -> %a: f32[4,1]
sqrt = sqrt(%a) -> %r: f32[4,1]
div = div(%c, %r) -> %n: f32[4,8]
return %n
"""
VARIANCE = """
%x: f32[4,8] input
mean = mean(%x) -> %m: f32[4,1]
sub = sub(%x, %m) -> %c: f32[4,8]
var = var(%x) -> %v: f32[4,1]
rsqrt = rsqrt(%v) -> %r: f32[4,1]
mul = mul(%r, %c) -> %n: f32[4,8]
return %n
"""


def found(text: str) -> list[tuple[str, list[str]]]:
    plan = plan_of(text)
    return [(name, [d.op for d in ops]) for name, ops in structures(plan, ())]


@pytest.mark.parametrize(
    ("text", "name", "ops"),
    [
        (SOFTMAX, "softmax", ["amax", "sub", "exp", "sum", "expand", "div"]),
        (SOFTMAX.replace("%m)", "%x)"), "softmax", ["exp", "sum", "expand", "div"]),
        (RMS, "rms_norm", ["square", "mean", "add", "rsqrt", "mul"]),
        (
            LAYER,
            "layer_norm",
            ["mean", "sub", "square", "sum", "over", "add", "sqrt", "div"],
        ),
        (
            RMS.replace("mul(%x, %r)", "mul(%s, %r)").replace(
                "square =", "scale = mul(%y, %x) -> %s: f32[4,8]\nsquare ="
            ),
            "rms_norm",
            ["scale", "square", "mean", "add", "rsqrt", "mul"],
        ),
        (VARIANCE, "layer_norm", ["mean", "sub", "var", "rsqrt", "mul"]),
    ],
)
def test_a_structure_is_found_with_its_ops(
    text: str, name: str, ops: list[str]
) -> None:
    assert found(text) == [(name, ops)]


@pytest.mark.parametrize(
    "text",
    [
        SOFTMAX.replace("sum(%e)", "sum(%s)"),
        SOFTMAX.replace("div(%e, %u)", "div(%s, %u)"),
        RMS.replace("mul(%x, %r)", "mul(%y, %r)"),
        RMS.replace("square(%x)", "mul(%x, %y)"),
        LAYER.replace("sub(%x, %m)", "sub(%m, %x)").replace("div(%c", "div(%x"),
        VARIANCE.replace("var(%x)", "var(%c)"),
    ],
)
def test_a_missing_edge_makes_it_another_thing(text: str) -> None:
    assert found(text) == []


COUNTED = """
%x: f32[4,8] input
%y: f32[4,1] input
square = square(%x) -> %q: f32[4,8]
sum = sum(%q) -> %t: f32[4,1]
eight = full() -> %n: f32[]
less = sub(%n) -> %k: f32[]
over = div(%t, %k) -> %v: f32[4,1]
nan = full() -> %f: f32[4,1]
where = where(%f, %v) -> %m: f32[4,1]
rsqrt = rsqrt(%m) -> %r: f32[4,1]
mul = mul(%x, %r) -> %o: f32[4,8]
return %o
"""


def test_a_count_that_is_computed_of_numbers_is_a_part() -> None:
    ((name, ops),) = found(COUNTED)
    assert (name, len(ops)) == ("rms_norm", 9)
    assert found(COUNTED.replace("div(%t, %k)", "div(%t, %y)")) == []


def test_a_long_program_is_read() -> None:
    lines = [f"sin{n} = sin(%v{n}) -> %v{n + 1}: f32[4]" for n in range(3000)]
    lines.append("div = div(%v3000, %v2999) -> %d: f32[4]")
    assert found("\n".join(["%v0: f32[4] input", *lines, "return %d"])) == []


def test_ops_of_another_compound_are_left_alone() -> None:
    plan = plan_of(SOFTMAX)
    assert list(structures(plan, {"exp"})) == []


def test_graphs_with_equal_names_have_edges_of_their_own() -> None:
    plan = join_plans([plan_of(SOFTMAX), plan_of(RMS)])
    names = [(name, ops[0].op) for name, ops in structures(plan, ())]
    assert names == [("softmax", "graph0.amax"), ("rms_norm", "graph1.square")]


NUMBERS = (
    ("rsqrt = rsqrt() -> %r: f32[4]", "mul = mul(%x, %r) -> %y: f32[4]"),
    (
        "sum = sum() -> %s: f32[4]",
        "exp = exp() -> %e: f32[4]",
        "div = div(%e, %s) -> %y: f32[4]",
    ),
    *(
        (*made, "rsqrt = rsqrt(%m) -> %r: f32[4]", "mul = mul(%x, %r) -> %y: f32[4]")
        for made in (
            ("pow = pow() -> %p: f32[4]", "mean = mean(%p) -> %m: f32[4]"),
            ("mean = mean() -> %m: f32[4]",),
            ("add = add() -> %m: f32[4]",),
        )
    ),
)


@pytest.mark.parametrize("lines", NUMBERS)
def test_ops_on_numbers_alone_are_no_structure(lines: tuple[str, ...]) -> None:
    assert found("\n".join(["%x: f32[4] input", *lines, "return %y"])) == []

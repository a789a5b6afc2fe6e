"""Where exactness ends: by a trait, by a call, by the form of a product."""

import pytest

from amprewrite.ir import ProgramGraph, parse_graph
from amprewrite.passes.analysis.demand import Bending


def graph_of(lines: str, calls: str = "") -> ProgramGraph:
    fact = f'\n  | calls=["{calls}"]' if calls else ""
    return parse_graph(f"%x: f32[4,8] input\n{lines}{fact}\nreturn %y")


def bends(lines: str, calls: str = "") -> bool:
    graph = graph_of(lines, calls)
    return Bending(graph).at(graph.ops[-1])


@pytest.mark.parametrize(
    ("op", "bent"),
    [
        *(("tanh", True), ("softmax", True), ("layer_norm", True), ("relu", True)),
        *(("add", False), ("clamp", False), ("exp", False), ("cdist", False)),
    ],
)
def test_an_op_bends_by_its_trait(op: str, *, bent: bool) -> None:
    assert bends(f"a = {op}(%x) -> %y: f32[4,8]") is bent


@pytest.mark.parametrize(
    ("call", "bent"),
    [
        *(("softmax#1", True), ("rms_norm#2", True), ("hard_sigmoid#1", True)),
        *(("standardize#1", True), ("attention#3", True), ("swiglu#1", True)),
        *(("rotary#1", False), ("mse_loss#1", False), ("searchsorted#1", False)),
    ],
)
def test_an_op_bends_by_the_call_that_it_is_a_part_of(call: str, *, bent: bool) -> None:
    assert bends("a = div(%x, %x) -> %y: f32[4,8]", call) is bent


RMS = """
square = square(%x) -> %q: f32[4,8]
{mean}
eps = add(%m) -> %e: f32[4,1]
  | literals=[1e-6]
root = {root}(%e) -> %r: f32[4,1]
last = {last}(%x, %r) -> %y: f32[4,8]
"""
MEAN = "mean = mean(%q) -> %m: f32[4,1]"
SUM = "sum = sum(%q) -> %m: f32[4,1]"
SUM_BY_COUNT = """sum = sum(%q) -> %s: f32[4,1]
by = div(%s) -> %m: f32[4,1]
  | literals=[8]"""


@pytest.mark.parametrize(
    ("mean", "root", "last", "bent"),
    [
        (MEAN, "rsqrt", "mul", True),
        (MEAN, "sqrt", "div", True),
        (SUM_BY_COUNT, "rsqrt", "mul", True),
        (SUM, "sqrt", "div", False),
    ],
)
def test_a_norm_of_layers_bends_and_a_direction_does_not(
    mean: str, root: str, last: str, *, bent: bool
) -> None:
    assert bends(RMS.format(mean=mean, root=root, last=last).strip()) is bent


def test_a_centred_norm_bends() -> None:
    assert bends("""mean = mean(%x) -> %m: f32[4,1]
sub = sub(%x, %m) -> %c: f32[4,8]
var = var(%x) -> %v: f32[4,1]
root = rsqrt(%v) -> %r: f32[4,1]
last = mul(%c, %r) -> %y: f32[4,8]""")


def test_an_activation_that_is_spelled_out_bends_and_a_gate_does_not() -> None:
    lines = """dot = matmul(%x) -> %u: f32[4,8]
half = mul(%x) -> %h: f32[4,8]
  | literals=[0.5]
bend = {bend}(%x) -> %s: f32[4,8]
more = add(%s) -> %t: f32[4,8]
  | literals=[1.0]
last = mul({value}, %t) -> %y: f32[4,8]"""
    for bend in ("tanh", "sigmoid", "erf"):
        assert bends(lines.format(bend=bend, value="%h"))
    assert not bends(lines.format(bend="sigmoid", value="%u"))
    assert not bends(lines.format(bend="neg", value="%h"))


@pytest.mark.parametrize(
    ("last", "bent"),
    [("mul(%s, %x)", True), ("mul(%x, %s)", True), ("div(%s, %x)", False)],
)
def test_a_quotient_by_the_value_itself_has_no_bound(last: str, *, bent: bool) -> None:
    lines = f"bend = tanh(%x) -> %s: f32[4,8]\nlast = {last} -> %y: f32[4,8]"
    assert bends(lines) is bent


def test_a_softmax_that_is_spelled_out_bends() -> None:
    lines = """exp = {op}(%x) -> %e: f32[4,8]
sum = sum(%e) -> %s: f32[4,1]
last = div(%e, %s) -> %y: f32[4,8]"""
    assert bends(lines.format(op="exp"))
    assert not bends(lines.format(op="neg"))


def test_a_softplus_that_is_spelled_out_bends() -> None:
    lines = """exp = {op}(%x) -> %e: f32[4,8]
more = add(%e) -> %s: f32[4,8]
  | literals=[1.0]
log = log(%s) -> %y: f32[4,8]"""
    assert bends(lines.format(op="exp"))
    assert not bends(lines.format(op="neg"))


def test_a_square_bends_nothing() -> None:
    assert not bends("last = mul(%x, %x) -> %y: f32[4,8]")


CURVE = """{lines}
last = {op}(%s) -> %y: f32[4]
  | literals={literals}"""


@pytest.mark.parametrize(
    ("lines", "op", "literals", "curve"),
    [
        ("a = sum(%x) -> %s: f32[4]", "sqrt", "[]", False),
        ("a = sum(%x) -> %s: f32[4]", "pow", "[0.5]", False),
        ("a = sum(%x) -> %s: f32[4]", "pow", "[-0.2]", True),
        ("a = sum(%x) -> %s: f32[4]", "exp", "[]", True),
        (
            "a = square(%x) -> %q: f32[4]\nb = add(%q, %q) -> %s: f32[4]",
            "sqrt",
            "[]",
            0,
        ),
        (
            (
                "a = matmul(%x) -> %q: f32[4]\n  | contracted=8\n"
                "b = reshape(%q) -> %s: f32[4]"
            ),
            "sqrt",
            "[]",
            False,
        ),
        ("a = amax(%x) -> %s: f32[4]", "sqrt", "[]", True),
        (
            (
                "a = sum(%x) -> %q: f32[4]\nb = sqrt(%q) -> %r: f32[4]\n"
                "c = div(%r) -> %s: f32[4]"
            ),
            "sqrt",
            "[]",
            True,
        ),
        ("a = sum(%x) -> %s: f32[4]", "add", "[]", False),
    ],
)
def test_the_root_of_a_sum_is_no_curve(
    lines: str, op: str, literals: str, *, curve: bool
) -> None:
    graph = graph_of(CURVE.format(lines=lines, op=op, literals=literals))
    assert Bending(graph).curves(graph.ops[-1]) == curve

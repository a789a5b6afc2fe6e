"""What identifies a program, and where two differ first."""

import pytest

from amprewrite.ir import parse_graph
from amprewrite.plan.validation.fingerprint import fingerprint, first_difference

TEXT = """%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | native="aten.linear.default"
exp = exp(%h) -> %e: f32[4,8]
return %e
"""


def of(text: str) -> tuple[str, ...]:
    return fingerprint(parse_graph(text))


def test_it_is_readable() -> None:
    assert of(TEXT) == (
        (
            "linear = aten.linear.default(%x: float32 2d input, "
            "%w: float32 2d parameter) -> %h: float32 2d"
        ),
        "exp = exp(%h: float32 2d) -> %e: float32 2d",
        "return %e: float32 2d",
    )


def test_extents_are_left_out() -> None:
    assert of(TEXT.replace("[4,8]", "[s0,8]")) == of(TEXT)
    assert first_difference(of(TEXT), of(TEXT)) is None


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("%x: f32", "%x: f64", "linear"),
        ("%w: f32[8,8] parameter", "%w: f32[8,8] input", "linear"),
        ("%e: f32[4,8]", "%e: f32[4]", "exp"),
        ("exp = exp", "exp = log", "exp"),
        ("exp(%h)", "exp(%x)", "exp"),
        ("return %e", "return %h", "return"),
        ("aten.linear.default", "aten.linear.out", "linear"),
    ],
)
def test_the_first_difference_is_named(old: str, new: str, where: str) -> None:
    found = first_difference(of(TEXT.replace(old, new)), of(TEXT))
    assert (found[0] if found else "") == where


def test_a_program_that_goes_on_differs() -> None:
    longer = of(TEXT)
    assert first_difference(longer[:1], longer) == ("exp", "nothing", longer[1])
    assert first_difference((), longer) == ("linear", "nothing", longer[0])

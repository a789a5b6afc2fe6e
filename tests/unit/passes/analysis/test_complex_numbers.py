"""Complex numbers are neither ordered nor truncated."""

from dataclasses import replace

import pytest

from amprewrite.errors import ComplexTruncationError, PromotionError
from amprewrite.ir import parse_graph
from amprewrite.passes.analysis.classify import refuse_complex
from amprewrite.policy import load_policy

PROMOTE = load_policy("promote")

CAST = """
%z: c64[4] input
to = cast(%z) -> %x: f32[4]
  | dtype_argument="float32" operand_rule="any" source="model.py:7"
return %x
"""


def test_a_cast_that_drops_the_imaginary_part_is_refused() -> None:
    with pytest.raises(ComplexTruncationError, match=r"model.py:7: cast: found a cast"):
        refuse_complex(parse_graph(CAST), PROMOTE)
    refuse_complex(parse_graph(CAST), replace(PROMOTE, truncate_complex=True))
    wider = CAST.replace("f32", "c128").replace("float32", "complex128")
    refuse_complex(parse_graph(wider), PROMOTE)


def test_a_bool_drops_nothing() -> None:
    as_bool = CAST.replace("f32", "b1").replace('"float32"', '"bool"')
    refuse_complex(parse_graph(as_bool), PROMOTE)


@pytest.mark.parametrize(
    "line",
    [
        'sum(%z) -> %y: f32[4]\n  | dtype_argument="float32"',
        "copy(%x, %z) -> %y: f32[4] alias %x\n  | mutates=[0]",
        "slice_scatter(%x, %z) -> %y: f32[4]",
        "add(%x, %z) -> %y: f32[4] alias %x\n  | mutates=[0]",
    ],
)
def test_so_is_what_is_summed_in_or_written_into_real_numbers(line: str) -> None:
    text = f"%x: f32[4] input\n%z: c64[4] input\nop = {line}\nreturn %y\n"
    with pytest.raises(ComplexTruncationError, match="found a cast of complex64 to"):
        refuse_complex(parse_graph(text), PROMOTE)
    refuse_complex(parse_graph(text), replace(PROMOTE, truncate_complex=True))


@pytest.mark.parametrize(
    "line",
    [
        'zeros_like(%z) -> %y: f32[4]\n  | dtype_argument="float32" operand_rule="any"',
        'randn_like(%z) -> %y: f32[4]\n  | dtype_argument="float32" operand_rule="any"',
        "abs(%z) -> %y: f32[4]",
        "eq(%z, %z) -> %y: b1[4]",
        "mystery(%x, %z) -> %y: f32[4] alias %x\n  | mutates=[0]",
    ],
)
def test_what_makes_real_numbers_of_complex_ones_is_not(line: str) -> None:
    text = f"%x: f32[4] input\n%z: c64[4] input\nop = {line}\nreturn %y\n"
    refuse_complex(parse_graph(text), PROMOTE)


def test_the_module_is_named() -> None:
    text = CAST.replace('source="', 'path="encoder.0" source="')
    with pytest.raises(
        ComplexTruncationError, match=r"model\.py:7: encoder\.0: cast: "
    ):
        refuse_complex(parse_graph(text), PROMOTE)


def test_an_order_of_complex_numbers_is_refused() -> None:
    text = "%z: c64[4] input\nlast = softmax(%z) -> %y: c64[4]\nreturn %y\n"
    with pytest.raises(PromotionError, match="softmax: found an operand of complex64"):
        refuse_complex(parse_graph(text), PROMOTE)
    refuse_complex(parse_graph(text.replace("c64", "f32")), PROMOTE)
    refuse_complex(parse_graph(text.replace("softmax", "exp")), PROMOTE)


STATE = """
%mean: f32[4] buffer
%z: c64[4] input
add = add(%mean, %z) -> %new: c64[4]
  | source="model.py:9"
return %new into %mean
"""


def test_a_real_state_does_not_become_complex() -> None:
    with pytest.raises(
        ComplexTruncationError,
        match=r"model.py:9: state %mean: found complex64 .* initialise it as complex64",
    ):
        refuse_complex(parse_graph(STATE), PROMOTE)
    refuse_complex(parse_graph(STATE), replace(PROMOTE, truncate_complex=True))
    refuse_complex(parse_graph(STATE.replace(" into %mean", "")), PROMOTE)
    refuse_complex(parse_graph(STATE.replace("mean: f32", "mean: c64")), PROMOTE)

"""Complex numbers are neither ordered nor truncated."""

from dataclasses import replace

import pytest

from amprewrite.errors import ComplexTruncationError, PromotionError
from amprewrite.ir import parse_graph
from amprewrite.passes.complexes import refuse_complex
from amprewrite.policy import load_policy

PROMOTE = load_policy("promote")

CAST = """
%z: c64[4] input
to = cast(%z) -> %x: f32[4]
  | dtype_argument="float32" mixing="any" source="model.py:7"
return %x
"""


def test_a_cast_that_drops_the_imaginary_part_is_refused() -> None:
    with pytest.raises(ComplexTruncationError, match=r"model.py:7: cast: found a cast"):
        refuse_complex(parse_graph(CAST), PROMOTE)
    refuse_complex(parse_graph(CAST), replace(PROMOTE, truncate_complex=True))
    wider = CAST.replace("f32", "c128").replace("float32", "complex128")
    refuse_complex(parse_graph(wider), PROMOTE)


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

"""The range in which a plan holds gradients, and whether it is unit-scaled."""

import pytest

from amprewrite.plan.facts import gradient_format, is_unit_scaled
from tests.plan_text import plan_of

PROGRAM = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    {op} = {op}(%x) -> %s: f32[8,8]
    mm = matmul(%s, %w) -> %y: f32[8,8]
      | contracted=8
    return %y
"""


@pytest.mark.parametrize(("op", "found"), [("scale", True), ("mul", False)])
def test_factors_make_a_program_unit_scaled(op: str, *, found: bool) -> None:
    assert is_unit_scaled(plan_of(PROGRAM.format(op=op))) is found


@pytest.mark.parametrize(
    ("policy", "held"),
    [
        ("fp16", "float16"),
        ("off", ""),
        ("fp8", "bfloat16"),
        ("unit-fp8", "float8_e5m2"),
    ],
)
def test_the_format_of_gradients_without_a_scale(policy: str, held: str) -> None:
    assert gradient_format(plan_of(PROGRAM.format(op="mul"), policy)) == held

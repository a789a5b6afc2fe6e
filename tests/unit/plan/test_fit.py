"""A plan is refused by a program that it was not made for."""

from dataclasses import replace

import pytest

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import parse_graph
from amprewrite.plan.fit import check_fits
from tests.plan_text import plan_of

TEXT = """%x: f32[4,8] input
exp = exp(%x) -> %y: f32[4,8]
sum = sum(%y) -> %z: f32[4]
return %z
"""


def test_a_plan_fits_its_own_program() -> None:
    check_fits(parse_graph(TEXT), plan_of(TEXT))


def test_the_first_op_that_differs_is_named() -> None:
    other = parse_graph(TEXT.replace("sum = sum", "total = sum"))
    with pytest.raises(
        PlanMismatchError, match=r"has total \(\) where .* has sum \(\)"
    ):
        check_fits(other, plan_of(TEXT))


def test_a_plan_of_a_longer_program_is_refused() -> None:
    plan = plan_of(TEXT)
    shorter = replace(plan, decisions=plan.decisions[:1])
    with pytest.raises(PlanMismatchError, match="has 1 decisions for 2 ops"):
        check_fits(parse_graph(TEXT), shorter)

"""A plan is refused by a program that it was not made for."""

from dataclasses import replace
from typing import Any

import pytest

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import parse_graph
from amprewrite.plan.validation.check import check_fits, check_ops
from tests.plan_text import plan_of

TEXT = """%x: f32[4,8] input
exp = exp(%x) -> %y: f32[4,8]
sum = sum(%y) -> %z: f32[4]
return %z
"""


def refusal(text: str = TEXT, **given: Any) -> str:
    asked = {"training": False, "mode": "eval", **given}
    plan = replace(plan_of(TEXT), mode="eval")
    with pytest.raises(PlanMismatchError) as caught:
        check_fits(parse_graph(text), plan, **asked)
    return str(caught.value)


def test_a_plan_fits_its_own_program() -> None:
    check_fits(parse_graph(TEXT), plan_of(TEXT), training=False)
    other_batch = parse_graph(TEXT.replace("[4", "[9"))
    check_fits(other_batch, plan_of(TEXT), training=False, mode="train")


def test_the_first_op_that_differs_is_named() -> None:
    message = refusal(TEXT.replace("sum = sum", "total = sum"))
    assert message.startswith("plan does not fit the program: first at total, where ")
    assert "\n    total = sum(%y: float32 2d) -> %z: float32 1d\n" in message
    assert "\n    sum = sum(%y: float32 2d) -> %z: float32 1d\n" in message


def test_another_dtype_is_another_program() -> None:
    assert "first at exp, where" in refusal(TEXT.replace("f32", "f64"))


def test_another_mode_or_use_is_named() -> None:
    assert "in eval mode, and this one is in train mode; call .eval()" in refusal(
        mode="train"
    )
    assert (
        "for inference (training=False), and this one is converted to be trained"
        in (refusal(training=True))
    )


def test_a_plan_of_other_ops_is_refused_whatever_it_says() -> None:
    plan = plan_of(TEXT)
    shorter = replace(plan, decisions=plan.decisions[:1])
    with pytest.raises(PlanMismatchError, match="has 1 decisions for 2 ops"):
        check_ops(parse_graph(TEXT), shorter)
    other = replace(plan, decisions=plan.decisions[::-1])
    with pytest.raises(PlanMismatchError, match=r"has exp \(\) where .* has sum \(\)"):
        check_ops(parse_graph(TEXT), other)

"""What a plan says of the memory of a training step."""

from dataclasses import replace

from amprewrite.plan import join_plans
from amprewrite.plan.fields import Kept, Recompute, RecomputedRegion
from tests.plan_text import SMALL, plan_of

FOUND = Recompute(
    kept=(Kept("h", "bfloat16", 64), Kept("w", "float32")),
    regions=(RecomputedRegion(("exp",), (("h", "bfloat16"),)),),
    bytes_before=192,
    moved_bytes=96,
)


def test_it_counts_bytes_and_names_ops() -> None:
    assert (FOUND.bytes_kept, FOUND.ops) == (64, frozenset({"exp"}))
    assert FOUND
    assert not Recompute()


def test_joined_plans_number_the_names() -> None:
    plan = replace(plan_of(SMALL), recompute=FOUND)
    joined = join_plans([plan, plan]).recompute
    assert joined.ops == {"graph0.exp", "graph1.exp"}
    assert joined.kept[2] == Kept("graph1.h", "bfloat16", 64)
    assert (joined.bytes_before, joined.moved_bytes) == (384, 192)


def test_summary_reason_and_difference_show_it() -> None:
    plain = plan_of(SMALL)
    plan = replace(plain, recompute=FOUND)
    assert "1 ops in 1 regions run again" in plan.summary()
    assert "keep 64 bytes, not 192" in plan.summary()
    assert "again in the backward pass" in plan.explain("exp")
    assert "again" not in plan.explain("linear")
    assert plain.diff(plan) == ("exp: runs again only by the second",)

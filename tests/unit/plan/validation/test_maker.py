"""The policy that a plan was made by."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from amprewrite.errors import AmpWarning, PlanMismatchError
from amprewrite.plan.validation.maker import policy_digest, policy_of
from amprewrite.policy import OpClass, load_policy
from amprewrite.policy.model import OpEntry
from tests.plan_text import plan_of

TEXT = "%x: f32[4,8] input\nexp = exp(%x) -> %y: f32[4,8]\nreturn %y"


def test_a_plan_brings_its_policy() -> None:
    assert policy_of(plan_of(TEXT, "fp16"), None) == load_policy("fp16")
    assert policy_of(plan_of(TEXT, "fp16"), "half") == load_policy("fp16")


def test_another_policy_is_refused() -> None:
    for other in ("fp16", "bf16-accumulate", "off"):
        with pytest.raises(PlanMismatchError, match=f"and policy '{other}'"):
            policy_of(plan_of(TEXT), other)


def test_a_copy_under_another_name_is_the_same_policy() -> None:
    copy = replace(load_policy("bf16"), name="mine")
    assert policy_digest(copy) == policy_digest(load_policy("bf16"))
    assert policy_of(plan_of(TEXT), copy) is copy


def test_a_digest_follows_the_entries_of_a_policy_and_dies_with_it() -> None:
    ops = dict(load_policy("bf16").ops)
    policy = replace(load_policy("bf16"), ops=ops)
    before = policy_digest(policy)
    assert policy_digest(policy) == before
    entry = ops["exp"]
    ops["exp"] = OpEntry(OpClass.PROMOTE)
    assert policy_digest(policy) != before
    ops["exp"] = replace(entry, why="explained otherwise")
    assert policy_digest(policy) == before
    gone, _ = weakref.ref(policy), policy_digest(policy)
    del policy
    gc.collect()
    assert gone() is None


def test_a_policy_that_is_not_here_is_asked_for() -> None:
    plan = replace(plan_of(TEXT), policy="gone.toml")
    with pytest.raises(PlanMismatchError, match="give that policy as policy="):
        policy_of(plan, None)
    assert policy_of(plan, "bf16").low == "bfloat16"


def test_a_policy_that_changed_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "bf16"\n')
    plan = plan_of(TEXT, load_policy(file))
    file.write_text('extends = "bf16"\n[ops]\nexp = "promote"\n')
    with pytest.warns(AmpWarning, match="has changed since the plan was made"):
        policy_of(plan, None)
    file.write_text('extends = "fp16"\n')
    with pytest.raises(PlanMismatchError, match="plan has low bfloat16 and full"):
        policy_of(plan, None)

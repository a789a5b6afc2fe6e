"""What people type first for a policy: dtypes, and the names of other tools."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from amprewrite.errors import PolicyError
from amprewrite.policy import Policy, load_policy
from amprewrite.policy.load import ALIASES, named_policy, shipped_name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *(("bfloat16", "bf16"), ("float16", "fp16"), ("half", "fp16"), ("f16", "fp16")),
        *(("float32", "off"), ("fp32", "off"), ("f32", "off")),
        *(("mixed_bfloat16", "bf16"), ("mixed_float16", "fp16")),
        *(("bf16-mixed", "bf16"), ("16-mixed", "fp16")),
        *((ml_dtypes.bfloat16, "bf16"), (np.float16, "fp16"), (np.float32, "off")),
        *((np.dtype(ml_dtypes.bfloat16), "bf16"), (np.dtype("float16"), "fp16")),
    ],
)
def test_dtypes_and_names_of_other_tools_stand_for_shipped_policies(
    given: Any, name: str
) -> None:
    assert load_policy(given) == load_policy(name)
    assert load_policy(given).name == name


def test_every_alias_stands_for_a_policy() -> None:
    for name in ALIASES:
        assert load_policy(name).name == shipped_name(name)


def test_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    found = [load_policy(d).name for d in (torch.bfloat16, torch.half, torch.float32)]
    assert found == ["bf16", "fp16", "off"]


def test_dtypes_of_jax() -> None:
    jnp = pytest.importorskip("jax").numpy
    given = (jnp.bfloat16, jnp.float16, jnp.dtype("bfloat16"), jnp.float32)
    assert [load_policy(d).name for d in given] == ["bf16", "fp16", "bf16", "off"]


def test_what_has_a_name_passes() -> None:
    path, policy = Path("a.toml"), Policy("mine")
    assert named_policy(path) is path
    assert named_policy(policy) is policy
    assert named_policy("anything") == "anything"
    assert shipped_name("anything") == "anything"


@pytest.mark.parametrize("given", [np.float64, np.int8])
def test_a_dtype_without_a_policy_is_told_which_have_one(given: Any) -> None:
    with pytest.raises(PolicyError, match="want bfloat16, float16, float32") as caught:
        load_policy(given)
    assert np.dtype(given).name in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((np.ones(3),), "policy is a tuple; want a name such as 'bf16'"),
        ((np.ones(3),), "did you mean args=?"),
        (np.ones(3), "as a tuple: args=(x,)"),
        ([np.ones(3)], "as a tuple: args=(x,)"),
        ({"x": np.ones(3)}, "did you mean kwargs=?"),
        (3, "policy is a int; want"),
        (None, "policy is a NoneType; want"),
        (Policy, "policy is a type; want"),
    ],
)
def test_what_is_no_policy_is_named_by_its_kind(given: Any, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(given)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300  # not the values of a tensor


@pytest.mark.parametrize(
    ("given", "near"),
    [("bfloat61", "bfloat16"), ("BF16", "bf16"), ("mixed_bf16", "mixed_bfloat16")],
)
def test_a_name_that_is_not_there_is_told_the_nearest(given: str, near: str) -> None:
    with pytest.raises(PolicyError, match=f"did you mean '{near}'"):
        load_policy(given)


def test_8_bits_are_told_where_they_are_used() -> None:
    with pytest.raises(PolicyError, match="float8_e4m3fn is no dtype between ops"):
        named_policy(ml_dtypes.float8_e4m3fn)

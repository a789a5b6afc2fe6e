"""A second conversion of one function follows what was changed since the first."""

from pathlib import Path
from typing import Any

import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp

EXP_IS = """
extends = "bf16"
description = "of a test"

[ops]
exp = "{}"
"""


def chain(x: Any, w: Any) -> Any:
    return jnp.exp(x @ w) @ w


ARGS = (jnp.eye(8) / 4, jnp.eye(8) / 2)


def precisions(policy: Any, **options: Any) -> dict[str, str]:
    converted = amprewrite.convert(chain, policy, args=ARGS, **options)
    return {d.op: d.precision for d in converted.plan.decisions}


def test_a_policy_file_that_was_edited_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "edited.toml"
    found: list[str] = []
    for op_class in ("allow", "deny", "allow"):
        file.write_text(EXP_IS.format(op_class), "utf-8")
        found.append(precisions(str(file))["exp"])
    assert found == ["bfloat16", "float32", "bfloat16"]


def test_overrides_and_other_policies_are_followed() -> None:
    denied = {"op": "exp", "class": "deny"}
    allowed = {"op": "exp", "class": "allow"}
    pairs = [("bf16", denied), ("bf16", allowed), ("fp16", allowed), ("bf16", denied)]
    found = [precisions(name, overrides=[rule])["exp"] for name, rule in pairs]
    assert found == ["float32", "bfloat16", "float16", "float32"]


def test_a_rule_of_the_user_that_was_set_again_is_followed() -> None:
    @jax.custom_jvp
    def scaled(x: Any) -> Any:
        return 2 * x

    def function(x: Any, w: Any) -> Any:
        return scaled(x @ w).sum()

    def gradient() -> float:
        low = amprewrite.convert(function, args=ARGS)
        return float(jax.grad(low)(*ARGS)[0, 0])

    found: list[float] = []
    for slope in (2.0, 8.0):

        def rule(primals: Any, tangents: Any, slope: float = slope) -> Any:
            return scaled(primals[0]), slope * tangents[0]

        scaled.defjvp(rule)
        found.append(gradient())
    assert found[1] == 4 * found[0] != 0


def test_functions_of_one_code_keep_their_own_numbers() -> None:
    def times(number: float, scale: Any) -> Any:
        return lambda x, w: (x @ w) * number + scale

    found = [
        amprewrite.convert(times(number, jnp.full(8, add)), args=ARGS)(*ARGS)[0, 0]
        for number, add in ((1.0, 0.0), (4.0, 0.0), (4.0, 1.0))
    ]
    assert [float(x) for x in found] == [0.125, 0.5, 1.5]

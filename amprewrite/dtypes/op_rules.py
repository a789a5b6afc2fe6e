"""The dtype rule of every canonical op that has one, from op_rules.toml.

Sources: torch 2.13 eager on the CPU, measured op by op; where an op has another rule in
JAX or NumPy, the table has torch's, because the canonical names are those of ATen.
"""

import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

from amprewrite.dtypes.formats import did_you_mean
from amprewrite.dtypes.processor import Behaviour, Rule
from amprewrite.errors import PromotionError


def _rule(entry: str | dict[str, Any]) -> Rule:
    fields: dict[str, Any] = {"rule": entry} if isinstance(entry, str) else dict(entry)
    return Rule(Behaviour(fields.pop("rule")), **fields)


def _read() -> dict[str, Rule]:
    file = resources.files("amprewrite") / "dtypes" / "op_rules.toml"
    table = tomllib.loads(file.read_text("utf-8"))
    return {name: _rule(entry) for name, entry in table.items()}


OP_RULES: Mapping[str, Rule] = MappingProxyType(_read())
"""The rule of each op, by canonical name."""


def rule_of(op: str) -> Rule:
    """Return the rule of a canonical op.

    Raises:
        PromotionError: If the table has none; the message names the nearest.
    """
    if op in OP_RULES:
        return OP_RULES[op]
    raise PromotionError(
        f"op {op!r}: found no dtype rule; want a canonical name such as 'matmul'"
        f"{did_you_mean(op, OP_RULES)}"
    )

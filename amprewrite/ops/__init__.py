"""Facts about ops, independent of any policy: groups, kernel rules, traits."""

from amprewrite.ops.table import OpTable, op_table, traits_of
from amprewrite.ops.traits import (
    UNKNOWN,
    Group,
    OperandRule,
    OpTraits,
    line_key,
    op_keys,
)

__all__ = [
    "UNKNOWN",
    "Group",
    "OpTable",
    "OpTraits",
    "OperandRule",
    "line_key",
    "op_keys",
    "op_table",
    "traits_of",
]

"""Facts about ops, independent of any policy: groups, kernel rules, traits."""

from amprewrite.ops.table import (
    UNKNOWN,
    Group,
    OperandRule,
    OpTable,
    OpTraits,
    line_key,
    op_keys,
    op_table,
    traits_of,
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

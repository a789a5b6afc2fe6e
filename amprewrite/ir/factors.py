"""Factors of a contraction: the operands that are multiplied, not those added."""

from amprewrite.ir.graph import Op

_FACTORS = {
    "conv": 2,
    "conv_transpose": 2,
    "linear": 2,
    "matmul": 2,
    "mv": 2,
    "ragged_dot": 2,
    "scaled_dot_product_attention": 3,
}
"""Number of factors of ops that have their factors first."""

_BEFORE_ADDEND = {name: _FACTORS[name] for name in ("conv", "conv_transpose", "linear")}
"""Ops that may have a bias after their factors, and the number of those."""

_AFTER_ADDEND = ("addbmm", "addmm", "addmv", "baddbmm")
"""Ops with one addend, and then two factors."""


def factor_indices(op: Op) -> tuple[int, ...]:
    """Return the indices of the operands that ``op`` multiplies and sums.

    Those of attention are queries, keys and values. Empty for an op that is no
    contraction, or one with products of products inside (``lstm``, ``einsum`` of
    three operands).
    """
    if op.canonical in _AFTER_ADDEND:
        return (1, 2)
    if op.canonical == "einsum":
        return (0, 1) if len(op.operands) == 2 else ()  # noqa: PLR2004  # a product
    count = _FACTORS.get(op.canonical, 0)
    return tuple(range(count)) if count <= len(op.operands) else ()


def addend_index(op: Op) -> int | None:
    """Return the index of the operand that ``op`` adds to its products; None if none.

    It is a bias, or the first operand of ``addmm`` and its kin.
    """
    if op.canonical in _AFTER_ADDEND:
        return 0
    factors = _BEFORE_ADDEND.get(op.canonical)
    return factors if factors is not None and factors < len(op.operands) else None


def linear_factors(op: Op) -> list[str]:
    """Return the operands in which ``op`` is linear, its addends being zero.

    They are the factors of a product or a convolution that are read once. Attention is
    not linear in its queries and keys.
    """
    if op.traits.group not in ("contraction", "convolution") or len(op.results) != 1:
        return []
    factors = [op.operands[index] for index in factor_indices(op)]
    return [name for name in factors if op.operands.count(name) == 1]

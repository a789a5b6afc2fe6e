"""Ops that may run twice: cheap beside a contraction, and the same bits again."""

REPEATABLE_GROUPS = frozenset(
    (
        "activation",
        "average_pool",
        "cast",
        "clamp",
        "comparison",
        "exponential",
        "extremum",
        "factory",
        "inverse_trigonometric",
        "log_exp",
        "logarithm",
        "lookup",
        "loss",
        "mean",
        "movement",
        "norm",
        "normalisation",
        "pointwise",
        "power",
        "reciprocal",
        "rounding",
        "selection",
        "sign",
        "softmax",
        "special",
        "special_wide",
        "square",
        "sum",
        "trigonometric",
    )
)
"""Groups of ops that are cheap beside a contraction, and give the same bits again."""

COMMUNICATE = frozenset(
    (
        "all_gather",
        "all_to_all",
        "ppermute",
        "pmax",
        "pmin",
        "reshard",
        "pcast",
        "pvary",
        "device_put",
        "sharding_constraint",
        "optimization_barrier",
    )
)
"""Ops of these groups that all devices run together, or that order others."""

UNINITIALISED = frozenset(
    (
        "empty",
        "empty2",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
"""Ops of these groups whose result is what its memory had before."""

UNDEFINED = UNINITIALISED | {"rrelu", "rrelu_with_noise"}
"""Ops of these groups with another result each time."""

BITWISE = frozenset(("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"))
"""Ops that combine masks, of the group of metadata."""


def repeats(canonical: str, group: str) -> bool:
    """Return whether ops of a name and a group may run twice.

    Args:
        canonical: Name of the op in policies.
        group: Its group in the table of ops; empty if it has none.
    """
    if canonical in COMMUNICATE | UNDEFINED:
        return False
    return group in REPEATABLE_GROUPS or canonical in BITWISE

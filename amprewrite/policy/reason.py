"""Kinds of reasons for the class of an op, for code to branch on."""

from enum import StrEnum


class Reason(StrEnum):
    """Kind of the source of an op's class.

    The texts beside it (``Decision.rule``, ``Decision.why``) are for people: no code
    compares them.
    """

    OVERRIDE = "override"
    """A rule of ``overrides=``."""
    RULE = "rule"
    """A rule of the policy."""
    OPS = "ops"
    """A line of the policy's ``[ops]``."""
    GROUP = "group"
    """A line of the policy's ``[groups]``."""
    UNCLASSIFIED = "unclassified"
    """No entry of the policy names the op."""
    LOWERS_NOTHING = "policy"
    """The policy has no low dtype."""
    DTYPE = "dtype"
    """The op touches no value of the full dtype, or one of another float dtype."""
    DTYPE_ARGUMENT = "dtype argument"
    """A ``dtype=`` argument in the model."""
    FENCE = "fence"
    """A fence: the op must not be changed."""
    USER_CAST = "user cast"
    """A change of dtype that is written in the model."""
    BODY = "body"
    """A region boundary: a value enters or leaves the body of a loop or branch."""
    MARKER = "marker"
    """A marker in the model asks for a precision."""
    PROMOTION = "promotion"
    """The operands were promoted to one dtype."""
    EXACT_FACTOR = "power of two"
    """Factors that are powers of two, which round nothing."""
    OUTER_PRODUCT = "contraction"
    """A contraction that sums nothing."""

    @property
    def is_rule(self) -> bool:
        """Whether a user wrote it for this op; cost never overrides it."""
        return self in (Reason.OVERRIDE, Reason.RULE)

    @property
    def is_overridable(self) -> bool:
        """Whether a rule of ``overrides=`` for the op would decide instead."""
        return self in _OVERRIDABLE


_OVERRIDABLE = frozenset(
    (
        Reason.OVERRIDE,
        Reason.RULE,
        Reason.OPS,
        Reason.GROUP,
        Reason.UNCLASSIFIED,
        Reason.EXACT_FACTOR,
        Reason.OUTER_PRODUCT,
    )
)

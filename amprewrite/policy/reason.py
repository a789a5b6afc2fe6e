"""Kinds of things that decide the class of an op: what code reads of a reason."""

from enum import StrEnum


class Reason(StrEnum):
    """What decided the class of an op.

    The label and the words beside it (``Decision.rule``, ``Decision.why``) are for
    people: no code compares them.
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
    """Nothing in the policy names the op."""
    LOWERS_NOTHING = "policy"
    """The policy has no low dtype."""
    DTYPE = "dtype"
    """The op touches no value of the full dtype, or one of another float dtype."""
    DTYPE_ARGUMENT = "dtype argument"
    """The model writes ``dtype=``."""
    FENCE = "fence"
    """The op must not be touched."""
    USER_CAST = "user cast"
    """A change of dtype that is written in the model."""
    BODY = "body"
    """The value passes into or out of the body of a loop, branch or rule."""
    MARKER = "marker"
    """A marker in the model asks for a precision."""
    PROMOTION = "promotion"
    """The operands were promoted to one dtype."""
    OUTER_PRODUCT = "contraction"
    """A contraction that sums nothing."""

    @property
    def is_rule(self) -> bool:
        """Whether the user wrote it for this op; facts about cost leave it alone."""
        return self in (Reason.OVERRIDE, Reason.RULE)

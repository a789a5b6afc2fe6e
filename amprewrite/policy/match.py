"""Match ops against a policy: the class of each op, with the rule behind it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from itertools import accumulate

from amprewrite.ir import Op
from amprewrite.ops import line_key
from amprewrite.policy.load import known_ops
from amprewrite.policy.model import (
    OpClass,
    Policy,
    Rule,
    key_matches,
    key_values,
    op_keys,
)

# Kinds of reasons for the class of an op, for code to branch on.


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


# The reason why a rule matched no op, with the nearest names.

NEAREST = 3
"""Number of names that are suggested."""

NAMES = {
    "path": "module path",
    "group": "group",
    "op": "op",
    "native": "native name",
    "op_name": "op name",
    "source": "source line",
}
"""Names of the keys of a rule in messages."""


def why_unused(rule: Rule, ops: Sequence[Op]) -> str:
    """Return the reason why ``rule`` decided no op, as the end of a sentence.

    Args:
        rule: A rule that decided no op.
        ops: Ops of the program.
    """
    if any(rule.matches(op) for op in ops):
        return "; overrides or rules before it decide about all ops that it matches"
    for key, glob in rule.keys.items():
        if not any(key_matches(key, glob, op) for op in ops):
            return _nearest(key, glob, ops)
    return "; none has all of these keys" if ops else ""


def _nearest(key: str, glob: str, ops: Sequence[Op]) -> str:
    names = sorted({name for op in ops for name in _names(key, op) if name})
    if not names:
        return f"; no op of this program has a {NAMES[key]}" if ops else ""
    near = get_close_matches(glob, names, n=NEAREST, cutoff=0.5)
    head = "nearest" if near else "there are"
    more = "" if near or len(names) <= NEAREST else ", ..."
    found = ", ".join(map(repr, near or names[:NEAREST]))
    return f"; no {NAMES[key]} is {glob!r}, {head} {found}{more}"


def _names(key: str, op: Op) -> Iterable[str]:
    """Return the names of ``op`` for a key: for paths, also the modules around it."""
    if key == "path":
        return accumulate(op.path.split("."), "{}.{}".format)
    return (op.canonical,) if key == "op" else key_values(key, op)


@dataclass(frozen=True, slots=True)
class Match:
    """The class of an op, with the source of the decision.

    Attributes:
        op_class: The class.
        reason: Kind of the source.
        rule: Key of the policy that decided, for people.
        why: Reason as text, for people.
    """

    op_class: OpClass
    reason: Reason
    rule: str
    why: str


@dataclass
class Matcher:
    """Matcher of ops: overrides first, then rules, ``[ops]`` and ``[groups]``.

    Attributes:
        policy: The policy.
        overrides: Rules that come before the policy's own; tables are accepted.
        full: Names of ops that run in full precision before any rule: those of a custom
            rule for a function that a plan runs in full.
        used: Labels of the rules that matched so far.
    """

    policy: Policy
    overrides: Iterable[Rule | Mapping[str, object]] = ()
    full: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        """Number the rules.

        Raises:
            PolicyError: An override is no rule.
        """
        given = _read(list(self.overrides), self.policy)
        self._rules = [
            (Reason.OVERRIDE, f"overrides[{i}]", rule) for i, rule in enumerate(given)
        ] + [
            (Reason.RULE, f"rules[{i}]", rule)
            for i, rule in enumerate(self.policy.rules)
        ]
        self._listed: dict[tuple[str, str], Match] = {}

    @property
    def given(self) -> tuple[Rule, ...]:
        """The overrides."""
        return tuple(r for why, _, r in self._rules if why is Reason.OVERRIDE)

    def match(self, op: Op) -> Match:
        """Return the class of ``op``; the first rule that matches wins."""
        if op.name in self.full:
            why = "the plan runs the op that this rule is for in full precision"
            return Match(OpClass.DENY, Reason.OVERRIDE, str(Reason.OVERRIDE), why)
        for reason, label, rule in self._rules:
            if rule.matches(op):
                self.used.add(label)
                why = rule.why or f"rule {rule}"
                return Match(rule.op_class, reason, label, why)
        return self.listed(op)

    def listed(self, op: Op) -> Match:
        """Return the class that the policy gives ``op``, ignoring all rules."""
        names = (op.native, op.canonical)
        if names not in self._listed:
            self._listed[names] = self._look_up(op)
        return self._listed[names]

    def _look_up(self, op: Op) -> Match:
        """Return the class by the names of an op: by ``[ops]``, else by its group."""
        for name in op_keys(op):
            if name in self.policy.ops:
                entry = self.policy.ops[name]
                why = entry.why or f"{name} is {entry.op_class} in {self.policy.name}"
                reason = Reason.GROUP if entry.group else Reason.OPS
                label = f"groups.{entry.group}" if entry.group else f"ops.{name}"
                return Match(entry.op_class, reason, label, why)
        reason = Reason.UNCLASSIFIED
        return Match(OpClass.KEEP, reason, str(reason), _why_unclassified(op))

    def unused(
        self, ops: Sequence[Op] = (), elsewhere: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return a line for each rule that matched no op, with the nearest names.

        Args:
            ops: Ops of the program.
            elsewhere: Module paths of the model that other programs run: a rule by such
                a path has its ops there.
        """
        return tuple(
            f"{label} {rule} matched no op{why_unused(rule, ops)}"
            for _, label, rule in self._rules
            if label not in self.used and not rule.names_one_of(elsewhere)
        )


def _read(
    overrides: Sequence[Rule | Mapping[str, object]], policy: Policy
) -> list[Rule]:
    """Return ``overrides`` as rules.

    Raises:
        PolicyError: Lists every mistake of all of them.
    """
    if not overrides:
        return []
    from amprewrite.policy.schema import read_rules  # noqa: PLC0415  # pydantic only if used

    words = (*policy.ops, *known_ops())
    return read_rules(overrides, "overrides", words)


def _why_unclassified(op: Op) -> str:
    """Return why an op that no policy names runs as it does, and the line to write."""
    head = "no policy names this op, so it runs at the dtypes it was traced with"
    if group := op.traits.group:
        return f'{head}; want a line under [groups], such as {group} = "promote"'
    key = line_key(op.canonical, op.native)
    return (
        f'{head}; want a line under [ops] of a policy, such as "{key}" = "promote", or '
        f'one in ops.toml for all policies, such as "{key}" = {{ group = "pointwise" }}'
    )

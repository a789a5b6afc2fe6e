"""Match ops against a policy: the class of each op, with the rule behind it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from amprewrite.ir import Op
from amprewrite.ops import line_key
from amprewrite.policy.load import known_ops
from amprewrite.policy.model import OpClass, Policy, Rule, op_keys
from amprewrite.policy.reason import Reason
from amprewrite.policy.unused import why_unused


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

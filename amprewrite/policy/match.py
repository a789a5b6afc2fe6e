"""Which class an op has, and what said so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from amprewrite.ir import Op
from amprewrite.policy.model import OpClass, OpEntry, Policy, Rule
from amprewrite.policy.schema import read_rule

UNCLASSIFIED = OpEntry(
    OpClass.KEEP, "no policy names this op, so it runs at the dtypes it was traced with"
)


@dataclass(frozen=True, slots=True)
class Match:
    """The class of an op, the place that said it, and the reason."""

    op_class: OpClass
    rule: str
    why: str


@dataclass
class Matcher:
    """Matches ops against overrides, then rules, then ``[ops]``.

    Attributes:
        policy: The policy.
        overrides: Rules that come before the policy's own; tables are accepted.
        used: Labels of the rules that matched so far.
    """

    policy: Policy
    overrides: Iterable[Rule | Mapping[str, object]] = ()
    used: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        """Number the rules once.

        Raises:
            PolicyError: An override is no rule.
        """
        given = [read_rule(r, f"overrides[{i}]") for i, r in enumerate(self.overrides)]
        self._rules = [(f"overrides[{i}]", rule) for i, rule in enumerate(given)]
        self._rules += [(f"rules[{i}]", r) for i, r in enumerate(self.policy.rules)]
        self._listed: dict[tuple[str, str], Match] = {}

    def match(self, op: Op) -> Match:
        """Return the class of ``op``; the first rule that matches wins."""
        for label, rule in self._rules:
            if rule.matches(op):
                self.used.add(label)
                return Match(rule.op_class, label, rule.why or f"rule {rule}")
        names = (op.native, op.canonical)
        if names not in self._listed:
            self._listed[names] = self._look_up(op)
        return self._listed[names]

    def _look_up(self, op: Op) -> Match:
        """Return what ``[ops]`` says; nothing but the names of ``op`` decides."""
        for name in op_keys(op):
            if name in self.policy.ops:
                entry = self.policy.ops[name]
                why = entry.why or f"{name} is {entry.op_class} in {self.policy.name}"
                return Match(entry.op_class, f"ops.{name}", why)
        return Match(UNCLASSIFIED.op_class, "unclassified", UNCLASSIFIED.why)

    def unused(self) -> tuple[str, ...]:
        """Return a line for each rule that matched no op."""
        return tuple(
            f"{label} {rule} matched no op"
            for label, rule in self._rules
            if label not in self.used
        )


def op_keys(op: Op) -> tuple[str, ...]:
    """Return the names under which ``[ops]`` may hold ``op``, most exact first."""
    packet, dot, _ = op.native.rpartition(".")
    packets = (packet, packet.replace(".", "::", 1)) if dot else ()
    return (op.native, *packets, op.canonical)

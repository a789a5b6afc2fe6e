"""Policies as tables and as data, and the differences of two policies."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from amprewrite.policy import OpEntry, Policy, Rule, shipped_policies
from amprewrite.policy.load import policy_folder

SETTINGS = (
    *("low", "full", "output", "demand", "weak_parameters", "lookups"),
    *("promotion", "truncate_complex"),
)
"""Fields of a policy other than its ops and rules."""


def descriptions() -> dict[str, str]:
    """Return the shipped policies with the descriptions in their files."""
    files = {name: policy_folder() / f"{name}.toml" for name in shipped_policies()}
    return {
        name: str(tomllib.loads(path.read_text("utf-8")).get("description", ""))
        for name, path in files.items()
    }


def names_table() -> Table:
    """Return a row for each shipped policy."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    table.add_column("description")
    for name, description in descriptions().items():
        table.add_row(Text(name), Text(description))
    return table


def policy_table(policy: Policy) -> Table:
    """Return a row for each rule, in order of trial, then one for each op.

    The group of an op is the one that gives its class; empty where the policy names the
    op itself.
    """
    settings = ", ".join(f"{key} {_shown(policy, key)}" for key in SETTINGS)
    table = Table(
        box=box.SIMPLE_HEAD, title=settings, title_justify="left", min_width=70
    )
    for head in ("op", "class", "group", "why"):
        table.add_column(head, overflow="fold")
    for index, rule in enumerate(policy.rules):
        cells = (f"rules[{index}] {rule}", str(rule.op_class), "", rule.why)
        table.add_row(*(Text(cell) for cell in cells))
    table.add_section()
    for name, entry in policy.ops.items():
        cells = (name, str(entry.op_class), entry.group, entry.why)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def policy_json(policy: Policy) -> dict[str, Any]:
    """Return a policy as JSON data, with everything it inherits."""
    return {
        "name": policy.name,
        **{key: getattr(policy, key) for key in SETTINGS},
        "ops": {name: _entry_json(entry) for name, entry in policy.ops.items()},
        "rules": [_rule_json(rule) for rule in policy.rules],
    }


def policy_diff(one: Policy, two: Policy) -> Iterator[str]:
    """Yield one line for each setting, op and rule in which two policies differ."""
    for key in SETTINGS:
        if getattr(one, key) != getattr(two, key):
            yield f"{key}: {_shown(one, key)} -> {_shown(two, key)}"
    for name in sorted({*one.ops, *two.ops}):
        a, b = _class_of(one.ops, name), _class_of(two.ops, name)
        if a != b:
            yield f"{name}: {a} -> {b}"
    theirs, ours = [str(r) for r in one.rules], [str(r) for r in two.rules]
    yield from (f"rule {r}: only in the first" for r in theirs if r not in ours)
    yield from (f"rule {r}: only in the second" for r in ours if r not in theirs)


def _shown(policy: Policy, key: str) -> str:
    found = getattr(policy, key)
    return str(found).lower() if isinstance(found, bool) else str(found) or "none"


def _class_of(ops: Mapping[str, OpEntry], name: str) -> str:
    return str(ops[name].op_class) if name in ops else "not named"


def _entry_json(entry: OpEntry) -> dict[str, str]:
    """Return the class, the reason and the group of an entry of a policy."""
    found = {"class": str(entry.op_class), "why": entry.why}
    return {**found, "group": entry.group} if entry.group else found


def _rule_json(rule: Rule) -> dict[str, str]:
    fields = asdict(rule)
    op_class = str(fields.pop("op_class"))
    return {**{key: text for key, text in fields.items() if text}, "class": op_class}

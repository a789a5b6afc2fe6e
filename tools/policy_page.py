"""Write docs/reference/policies.md from the policy files and the table of ops.

python -m tools.policy_page
"""

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from amprewrite.ops import op_table
from amprewrite.policy import Policy, load_policy, shipped_policies
from amprewrite.policy.load import policy_folder
from amprewrite.policy.schema import OpTable, PolicyFile
from amprewrite.report.policies import descriptions

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "policies.md"
EXAMPLES = 4
"""Ops that stand for a group in the table."""

HEAD = """# Shipped policies

<!-- Written by `python -m tools.policy_page`; a test compares. -->

A policy gives each op one of six [classes](../words.md#classes). It speaks of groups of
ops first, and then of the ops that differ from their group. `amprewrite policy NAME`
prints the class of every op, `amprewrite policy diff NAME OTHER` compares two;
[write a policy](../howto/write_a_policy.md) says how to change one.

"""


def page() -> str:
    """Return the text of the page."""
    policies = {name: load_policy(name) for name in shipped_policies()}
    parts = [
        *_settings(policies),
        "\n## The class of each group\n\n",
        "Empty: the policy has no line for the group, and its ops run as traced.\n\n",
        *_groups(policies),
        "\n## The reasons in bf16\n\n",
        *_reasons("bf16"),
        "\n## Ops that differ from their group\n",
    ]
    for name, policy in policies.items():
        parts += _ops(name, policy)
    return HEAD + "".join(parts)


def _settings(policies: dict[str, Policy]) -> Iterator[str]:
    yield "| policy | low | description |\n|---|---|---|\n"
    says = descriptions()
    for name, policy in policies.items():
        yield f"| `{name}` | {policy.low or '-'} | {says[name]} |\n"
    yield "\nAll have float32 as the full dtype.\n"


def members() -> dict[str, list[str]]:
    """Return the ops of each group, both in the order of the table of ops."""
    found: dict[str, list[str]] = {}
    for op, traits in op_table().ops.items():
        found.setdefault(traits.group, []).append(op)
    return found


def lines_of(name: str) -> dict[str, OpTable]:
    """Return the lines of ``[groups]`` of a shipped policy and of what it extends."""
    text = (policy_folder() / f"{name}.toml").read_text(encoding="utf-8")
    file = PolicyFile.model_validate(tomllib.loads(text))
    return {**(lines_of(file.extends) if file.extends else {}), **file.groups}


def _groups(names: Iterable[str]) -> Iterator[str]:
    lines = {name: lines_of(name) for name in names}
    yield f"| group | such as | {' | '.join(lines)} |\n"
    yield f"|---|---|{'---|' * len(lines)}\n"
    for group, ops in members().items():
        found = [of_policy.get(group) for of_policy in lines.values()]
        classes = " | ".join(line.op_class if line else "" for line in found)
        such = ", ".join(f"`{op}`" for op in ops[:EXAMPLES])
        yield f"| {group} | {such}{', ...' * (len(ops) > EXAMPLES)} | {classes} |\n"


def _reasons(name: str) -> Iterator[str]:
    yield "| group | class | why |\n|---|---|---|\n"
    for group, line in lines_of(name).items():
        if line.why:
            yield f"| {group} | {line.op_class} | {line.why} |\n"


def _ops(name: str, policy: Policy) -> Iterator[str]:
    by_class: dict[str, list[str]] = {}
    for op, entry in policy.ops.items():
        if not entry.group:
            by_class.setdefault(entry.op_class, []).append(f"`{op}`")
    if by_class:
        yield f"\n### {name}\n\n"
    for op_class, ops in by_class.items():
        yield f"- {op_class}: {', '.join(ops)}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Contents of a page as the data that its scripts read."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, isfinite
from typing import Any

from amprewrite.dtypes import short_name
from amprewrite.page.histograms import loss_scale, ranges
from amprewrite.page.model import Chart, Graph, Histogram, Node, Page, Table

# Modules of a program as nested groups that a reader opens one by one.

MOST_CHILDREN = 40
"""Most members of a group, so that an open one can be read and is laid out at once."""

QUIET = "integers and masks"
"""Label of the group of quiet nodes of a module."""

FEW_QUIET = 3
"""Most quiet nodes of a module that are drawn one by one."""

FIRST_SIGHT = 26
"""Nodes and groups shown at first, at most: as many as fit into the window's height."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group of nodes.

    Attributes:
        label: Text in the drawing: a part of a module's path, or a range of members.
        path: Path of the module, or of the one around it.
        parent: Index of the group around it; None at the top. A parent precedes.
        quiet: Whether it holds the quiet nodes of a module.
    """

    label: str
    path: str
    parent: int | None
    quiet: bool = False


@dataclass(slots=True)
class _Module:
    """A module while it is built, or a range of members of one.

    Attributes:
        label: See :class:`Group`.
        path: See :class:`Group`.
        ends: Names of the first and the last member of a range; empty for a module.
        members: Modules, and indices of nodes.
    """

    label: str
    path: str
    ends: tuple[str, ...] = ()
    members: "dict[str, _Module | int]" = field(
        default_factory=dict[str, "_Module | int"]
    )


def group_nodes(
    nodes: Sequence[Node],
) -> tuple[tuple[Group, ...], tuple[int | None, ...], tuple[str, ...]]:
    """Return the groups of ``nodes``, the group of each node, and the nodes' labels.

    A module with one member is replaced by it, its name before the member's. More than
    :data:`MOST_CHILDREN` members are split into ranges.
    """
    root = _Module("", "")
    for index, node in enumerate(nodes):
        _insert(root, node, index)
    _gather(root, nodes)
    _shorten(root)
    _split(root)
    groups: list[Group] = []
    of: list[int | None] = [None] * len(nodes)
    labels = [node.label for node in nodes]
    todo: deque[tuple[_Module, int | None]] = deque([(root, None)])
    while todo:
        module, at = todo.popleft()
        for key, member in module.members.items():
            if isinstance(member, int):
                of[member] = at
                labels[member] = f"{key.rpartition('#')[0]}{labels[member]}"
            else:
                quiet = member.label == QUIET
                groups.append(Group(member.label, member.path, at, quiet))
                todo.append((member, len(groups) - 1))
    return tuple(groups), tuple(of), tuple(labels)


def opened(
    groups: Sequence[Group], of: Sequence[int | None], most: int = FIRST_SIGHT
) -> tuple[int, ...]:
    """Return the groups that are open at first.

    Levels of groups that hold others are opened as long as at most ``most`` nodes and
    closed groups show; then the innermost groups, if all of them fit. Groups of quiet
    nodes stay closed; a single group at the top is always open.
    """
    children: dict[int | None, list[int]] = {}
    for index, group in enumerate(groups):
        if not group.quiet:
            children.setdefault(group.parent, []).append(index)
    gained: dict[int | None, int] = {}
    for parent in (*of, *(group.parent for group in groups)):
        gained[parent] = gained.get(parent, 0) + 1
    found: list[int] = []
    shown = gained.get(None, 0)
    level, last = children.get(None, []), list[int]()
    while level:
        last += [g for g in level if g not in children]
        outer = [g for g in level if g in children]
        more = sum(gained[g] - 1 for g in outer)
        if shown + more > most and len(level) > 1:
            return tuple(found)
        shown += more
        found += outer
        level = [child for g in outer for child in children[g]]
    if shown + sum(gained[g] - 1 for g in last) <= most or len(groups) == 1:
        found += last
    return tuple(found)


def _insert(root: _Module, node: Node, index: int) -> None:
    """Insert a node below the modules of its path."""
    at = root
    for part in filter(None, node.path.split(".")):
        inside = f"{at.path}.{part}" if at.path else part
        member = at.members.setdefault(f"{part}.", _Module(part, inside))
        assert isinstance(member, _Module)  # keys of nodes begin with "#"
        at = member
    at.members[f"#{index}"] = index


def _gather(module: _Module, nodes: Sequence[Node]) -> None:
    """Collect the quiet nodes of each module in a group, unless they are few."""
    quiet = {
        key: member
        for key, member in module.members.items()
        if isinstance(member, int) and nodes[member].quiet
    }
    for member in module.members.values():
        if isinstance(member, _Module):
            _gather(member, nodes)
    if FEW_QUIET < len(quiet) < len(module.members):
        gathered = _Module(QUIET, module.path, members=dict(quiet))
        rest = {k: m for k, m in module.members.items() if k not in quiet}
        module.members = {"#quiet": gathered, **rest}


def _shorten(module: _Module) -> None:
    """Replace each module below ``module`` that has one member by that member."""
    members: dict[str, _Module | int] = {}
    for key, member in module.members.items():
        if isinstance(member, int):
            members[key] = member
            continue
        _shorten(member)
        if len(member.members) > 1:
            members[key] = member
            continue
        ((inner, only),) = member.members.items()
        if isinstance(only, int):
            before, _, number = inner.rpartition("#")
            between = "." if before else " "
            members[f"{member.label}{between}{before}#{number}"] = only
        else:
            only.label = f"{member.label}.{only.label}"
            members[f"{key}{inner}"] = only
    module.members = members


def _split(module: _Module) -> None:
    """Split the members of every module into ranges of bounded size."""
    for member in module.members.values():
        if isinstance(member, _Module):
            _split(member)
    while len(module.members) > MOST_CHILDREN:
        items = list(module.members.items())
        size = ceil(len(items) / ceil(len(items) / MOST_CHILDREN))
        module.members = dict(_ranges(module.path, items, size))


def _ranges(
    path: str, items: Sequence[tuple[str, _Module | int]], size: int
) -> Iterator[tuple[str, _Module]]:
    """Yield modules of ``size`` consecutive members each."""
    for start in range(0, len(items), size):
        part = items[start : start + size]
        first, last = (
            _ends(part[0][1], start),
            _ends(part[-1][1], start + len(part) - 1),
        )
        ends = (first[0], last[-1])
        label = " to ".join(ends)
        yield f"{start} {label}.", _Module(label, path, ends, dict(part))


def _ends(member: _Module | int, position: int) -> tuple[str, ...]:
    """Return the names of the first and the last part of a member of a range."""
    if isinstance(member, int):
        return (f"op {position + 1}",)
    return member.ends or (member.label,)


def page_data(page: Page) -> dict[str, Any]:
    """Return the contents of a page as data of JSON, but for numbers not finite."""
    tables = (*page.before, *page.tables)
    return {
        "title": page.title,
        "lead": page.lead,
        "verdict": page.verdict,
        "tone": page.tone,
        "facts": [asdict(fact) for fact in page.facts],
        "shares": [[share.dtype, share.count] for share in page.shares],
        "notes": list(page.notes),
        "before": [_table(table) for table in page.before],
        "graph": None if page.graph is None else _graph(page.graph),
        "tables": [_table(table) for table in page.tables],
        "charts": [_chart(chart) for chart in page.charts],
        "histograms": _histograms(page.histograms),
        "short": {name: short_name(name) for name in sorted(_dtypes(page, tables))},
    }


def script_text(data: object) -> str:
    """Return ``data`` as JSON that is safe inside a script element.

    Only ASCII, without ``<``, ``>`` and ``&``, so that no text ends the element or
    begins a comment. Numbers that are not finite become the texts ``inf``, ``-inf`` and
    ``nan``, which JSON does not have.
    """
    text = json.dumps(plain(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def plain(found: Any) -> Any:  # noqa: ANN401  # any data of JSON
    """Return JSON data: ``inf`` and ``nan``, which JSON does not have, as text."""
    if isinstance(found, dict):
        return {str(key): plain(value) for key, value in found.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(found, (list, tuple)):
        return [plain(value) for value in found]  # pyright: ignore[reportUnknownVariableType]
    return str(found) if isinstance(found, float) and not isfinite(found) else found


def _table(table: Table) -> dict[str, Any]:
    return {
        "key": table.key,
        "title": table.title,
        "lead": table.lead,
        "sort": table.sort,
        "columns": [asdict(column) for column in table.columns],
        "rows": [list(row) for row in table.rows],
    }


def _graph(graph: Graph) -> dict[str, Any]:
    """Return the graph with nodes, groups and casts by their index."""
    groups, of, labels = group_nodes(graph.nodes)
    number = {node.name: index for index, node in enumerate(graph.nodes)}
    edges = [
        [number[edge.source], number[edge.target], edge.dtype, edge.conversion]
        for edge in graph.edges
    ]
    casts = [
        {
            **asdict(cast),
            "source": number.get(cast.source, -1),
            "targets": [number[name] for name in cast.targets if name in number],
        }
        for cast in graph.conversions
    ]
    nodes = [
        [node.name, label, node.dtype, group, node.kind, node.share, node.marked]
        for node, label, group in zip(graph.nodes, labels, of, strict=True)
    ]
    return {
        "lead": graph.lead,
        "groups": [[group.label, group.path, group.parent] for group in groups],
        "open": list(opened(groups, of)),
        "nodes": nodes,
        "edges": edges,
        "casts": casts,
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {**asdict(chart), "names": list(chart.names)}


def _histograms(found: Sequence[Histogram]) -> dict[str, Any] | None:
    """Return the histograms with the formats and the loss scales; None without any."""
    if not found:
        return None
    scale = loss_scale(found)
    return {
        "rows": [asdict(histogram) for histogram in found],
        "ranges": [asdict(found) for found in ranges()],
        "scale": None if scale is None else {**asdict(scale), "fits": scale.fits},
    }


def _dtypes(page: Page, tables: Iterable[Table]) -> set[str]:
    """Return every name of a dtype in the page."""
    names = {share.dtype for share in page.shares} | {r.name for r in ranges()}
    if page.graph is not None:
        names |= {node.dtype for node in page.graph.nodes}
        names |= {edge.dtype for edge in page.graph.edges}
        casts = page.graph.conversions
        names |= {name for c in casts for name in (c.from_dtype, c.to_dtype)}
    for table in tables:
        for index, column in enumerate(table.columns):
            if column.kind == "dtype":
                cells = (str(row[index] or "") for row in table.rows)
                names.update(
                    name
                    for cell in set(cells)
                    for name in cell.replace(" -> ", ", ").split(", ")
                )
    return names - {""}

"""Contents of a page as the data that its scripts read."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from amprewrite.dtypes import short_name
from amprewrite.page.groups import group_nodes, opened
from amprewrite.page.histograms import loss_scale, ranges
from amprewrite.page.model import Chart, Graph, Histogram, Page, Table


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
    text = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(found: Any) -> Any:  # noqa: ANN401  # any data of JSON
    if isinstance(found, dict):
        return {str(key): _plain(value) for key, value in found.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(found, (list, tuple)):
        return [_plain(value) for value in found]  # pyright: ignore[reportUnknownVariableType]
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

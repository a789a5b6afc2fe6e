"""Draw Mermaid flowcharts as SVG: a site without scripts of others cannot show them.

Of Mermaid only what tools/import_picture.py writes is read: a line for each arrow, or
for a node without one.
"""

import re
from statistics import fmean

import networkx as nx

FLOWCHART = re.compile(
    r"^```mermaid\nflowchart TD\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
ROW, GAP, CHARACTER, BOX, MARGIN = 58, 18, 8, 28, 10
"""Sizes in pixels: of a row, between boxes, of a letter, of a box, around all."""
BACKGROUND = "var(--md-default-bg-color)"
"""Of the page: arrows over several rows pass behind the boxes."""
SWEEPS = 4
"""Passes of ordering; more change nothing in pictures of this size."""


def drawn(markdown: str) -> str:
    """Return a text with each flowchart as SVG."""
    return FLOWCHART.sub(lambda found: svg(graph_of(found["body"])), markdown)


def graph_of(body: str) -> "nx.DiGraph[str]":
    """Return the graph of the lines of a flowchart."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for line in body.splitlines():
        start, arrow, end = (part.strip() for part in line.partition("-->"))
        if arrow:
            graph.add_edge(start, end)
        else:
            graph.add_node(start)
    return graph


def rows_of(graph: "nx.DiGraph[str]") -> list[list[str]]:
    """Return the nodes in rows, so that arrows point down and cross little.

    A row is ordered by the mean places of the neighbours in the rows above and below.
    """
    rows = [sorted(row) for row in nx.topological_generations(graph)]
    for sweep in range(SWEEPS):
        neighbours = graph.pred if sweep % 2 == 0 else graph.succ
        places = {n: (i + 0.5) / len(row) for row in rows for i, n in enumerate(row)}
        for row in rows:
            means = {n: [places[other] for other in neighbours[n]] for n in row}
            order = {n: fmean(found or [places[n]]) for n, found in means.items()}
            row.sort(key=order.__getitem__)
    return rows


def svg(graph: "nx.DiGraph[str]") -> str:
    """Return a graph as SVG text on one line, as Markdown passes it through."""
    rows = rows_of(graph)
    widths = {name: len(name) * CHARACTER + 2 * GAP for name in graph}
    full = max(sum(widths[n] + GAP for n in row) for row in rows) + 2 * MARGIN
    centres: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (full - sum(widths[n] + GAP for n in row) + GAP) / 2
        for name in row:
            centres[name] = left + widths[name] / 2, MARGIN + BOX / 2 + number * ROW
            left += widths[name] + GAP
    height = len(rows) * ROW + 2 * MARGIN
    font = 'font-size="13" text-anchor="middle" stroke="currentColor"'
    parts = [f'<svg viewBox="0 0 {full} {height}" {font} role="img">']
    for start, end in graph.edges:
        (x, y), (to_x, to_y) = centres[start], centres[end]
        y, to_y, bend = y + BOX / 2, to_y - BOX / 2, ROW / 2
        path = f"M{x} {y}C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y}"
        parts.append(f'<path d="{path}" fill="none" opacity="0.5"/>')
        parts.append(f'<path d="M{to_x} {to_y}l-4 -7h8z" fill="currentColor"/>')
    for name, (x, y) in centres.items():
        width = widths[name]
        parts.append(
            f'<rect x="{x - width / 2}" y="{y - BOX / 2}" width="{width}" '
            f'height="{BOX}" rx="5" fill="{BACKGROUND}"/><text x="{x}" y="{y + 4}" '
            f'fill="currentColor" stroke="none">{name}</text>'
        )
    return "".join([*parts, "</svg>"])

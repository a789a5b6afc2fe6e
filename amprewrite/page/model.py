"""Contents of a page as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cell = str | int | float | None
"""Content of a cell of a table."""

CellKind = Literal["text", "code", "path", "dtype", "count", "bytes", "error", "share"]
"""Way to print and to sort a column.

``dtype`` cells are names of dtypes, joined by commas or by `` -> ``; of a ``path`` the
end is seen where the cell is short; ``error`` is a relative error, ``share`` a part of
1.
"""

NodeKind = Literal["op", "input", "output"]

Tone = Literal["", "good", "bad"]
"""Whether a fact or verdict is good, bad, or neither."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure of the summary: its label, its text, a line below it."""

    label: str
    value: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Share:
    """Number of ops that compute in one dtype."""

    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: Its head, unique in the table.
        kind: See :data:`CellKind`.
        hint: Explanation of the head; shown when the pointer rests on it.
        hidden: Whether it is shown in the details of a selected row alone.
    """

    title: str
    kind: CellKind = "text"
    hint: str = ""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that a reader searches and sorts.

    Attributes:
        title: Title of its section.
        columns: The columns.
        rows: One cell for each column; the first names the row. Where it is the name of
            a node of the graph, selecting one selects the other.
        lead: A sentence above it.
        key: Name for links to it, of letters and hyphens.
        sort: Title of the column that it is sorted by at first, the largest first;
            empty for the order of the rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    lead: str = ""
    key: str = "rows"
    sort: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One op, input or output of the program.

    Attributes:
        name: Unique in the graph.
        label: Text in the drawing.
        dtype: Dtype that it computes in, or has.
        path: Path of its module, components joined by dots; empty for the root.
        kind: See :data:`NodeKind`.
        share: Share of it in the error; None if unknown.
        marked: Whether to draw attention to it: a fault, a difference.
        quiet: Whether it has no precision to choose, as an op of integers; several such
            ops of a module are drawn as one group.
    """

    name: str
    label: str
    dtype: str
    path: str = ""
    kind: NodeKind = "op"
    share: float | None = None
    marked: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """One use of a value: the nodes that make and read it, and the dtype that is read.

    Attributes:
        source: Name of the node that makes it.
        target: Name of the node that reads it.
        dtype: Dtype in which it is read.
        conversion: Index of the cast on the way; None without one.
    """

    source: str
    target: str
    dtype: str
    conversion: int | None = None


@dataclass(frozen=True, slots=True)
class Conversion:
    """One cast, as drawn.

    Attributes:
        value: Name of the value.
        source: Node that makes it; empty if none is drawn.
        targets: Nodes that read the cast value.
        from_dtype: Dtype before.
        to_dtype: Dtype after.
        bytes: Bytes read and written at run time.
        folded: Way in which it costs nothing; empty if it runs.
        weight: Whether a weight is cast; it is not drawn then, but listed.
    """

    value: str
    source: str
    targets: tuple[str, ...]
    from_dtype: str
    to_dtype: str
    bytes: int
    folded: str = ""
    weight: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """The program: nodes in program order, edges, casts."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of values of a chart, drawn as points or as a line.

    Attributes:
        name: Its name in the legend.
        values: One for each name of the chart; None where there is none.
        points: Whether to draw points instead of a line.
        dtype: Dtype that gives the colour; empty for one by position.
    """

    name: str
    values: tuple[float | None, ...]
    points: bool = False
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Values by position, on a logarithmic axis.

    Attributes:
        title: Title of its section.
        names: Name of each position; those of nodes can be selected.
        lines: The values.
        across: Label of the axis of positions.
        up: Label of the axis of values.
        lead: A sentence above it.
    """

    title: str
    names: tuple[str, ...]
    lines: tuple[Line, ...]
    across: str
    up: str
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Exponents of the elements of one tensor, or of several.

    Attributes:
        name: Name of the tensor.
        kind: ``weight``, ``activation``, ``weight gradient`` or ``activation
            gradient``.
        path: Path of its module.
        counts: Number of elements with ``2**e <= |x| < 2**(e + 1)``, by ``e``.
        zeros: Number of elements that are zero.
        nonfinite: Number of elements that are infinite or no number.
    """

    name: str
    kind: str
    path: str
    counts: Mapping[int, int]
    zeros: int = 0
    nonfinite: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page.

    Attributes:
        title: Its title.
        lead: A sentence below the title.
        verdict: The result in a few words; empty without one.
        tone: Whether the verdict is good or bad.
        facts: Figures of the summary.
        shares: Ops by dtype, for the bar of the summary.
        notes: Warnings and notes.
        before: Tables above the graph, the most important ones.
        graph: The program; None if it is not known.
        tables: Tables below the graph; the first is that of the ops.
        charts: Charts.
        histograms: Exponents of tensors.
    """

    title: str
    lead: str = ""
    verdict: str = ""
    tone: Tone = ""
    facts: tuple[Fact, ...] = ()
    shares: tuple[Share, ...] = ()
    notes: tuple[str, ...] = ()
    before: tuple[Table, ...] = ()
    graph: Graph | None = None
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    histograms: tuple[Histogram, ...] = ()

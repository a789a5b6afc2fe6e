"""Find values that a caller gets and ops read, where gradients are recorded.

A caller of a torch program may differentiate by a tensor that was returned, or that a
hook kept: by a hidden state, for attributions and probes. Its gradient is complete if
the readers read the tensor that is returned. A value that is made low and returned full
is therefore stored full, and cast down again for readers in low precision, which is
exact.
"""

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass

from amprewrite.ir import ProgramGraph
from amprewrite.plan.uses import View, output_sources, view_path


@dataclass(frozen=True)
class Returned:
    """Values that are returned full, and read by ops too.

    Attributes:
        values: Those that are stored full, however they are made.
        views: Ops that make one of another, as a view: they run full.
        storages: Storages of those that some op writes in place: they are full.
    """

    values: frozenset[str] = frozenset()
    views: frozenset[str] = frozenset()
    storages: frozenset[str] = frozenset()


RETURNED_VIEW = "a view of a value that is returned with it, and differentiated by"
"""Reason why such an op runs full."""

NOTHING_RETURNED = Returned()
"""Facts about a program that records no gradients."""


def find_returned(
    graph: ProgramGraph,
    outputs: tuple[str, ...],
    full: str,
    weights: Container[str] = (),
) -> Returned:
    """Return the values of ``graph`` by which a caller may differentiate.

    Args:
        graph: The program.
        outputs: Dtype in which each output is returned.
        full: The full dtype.
        weights: Values reached from weights by data movement, which are stored as the
            weights are.
    """
    if not graph.taped:
        return NOTHING_RETURNED
    paths: dict[str, dict[str, tuple[View, ...]]] = defaultdict(dict)
    for name, source, dtype in zip(
        graph.outputs, output_sources(graph), outputs, strict=True
    ):
        is_full = dtype == full and graph.is_dtype(name, full)
        if is_full and name in graph.producer and source not in weights:
            path = view_path(graph, source, name) if source != name else ()
            paths[source][name] = path or ()
    values, views, storages = set[str](), set[str](), set[str]()
    for source, members in paths.items():
        if not any(graph.users[name] for name in members):
            continue
        if graph.storage(source) in graph.written:
            storages.add(graph.storage(source))
            continue
        values.update((source, *members))
        views.update(op.name for path in members.values() for op, _ in path)
    return Returned(frozenset(values), frozenset(views), frozenset(storages))

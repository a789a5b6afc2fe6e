"""Promotion lattice: a partial order of dtypes, with joins and paths."""

from collections.abc import Iterable, Mapping

from amprewrite.errors import PromotionError


class Lattice:
    """A partial order of dtypes, given by the next larger ones of each."""

    def __init__(self, edges: Mapping[str, Iterable[str]]) -> None:
        """Compute the upper bounds of each dtype, itself included."""
        self._edges = {node: tuple(larger) for node, larger in edges.items()}
        self._bounds: dict[str, frozenset[str]] = {}
        for node in edges:
            self._climb(node, edges)

    def _climb(self, node: str, edges: Mapping[str, Iterable[str]]) -> frozenset[str]:
        if node not in self._bounds:
            above = (self._climb(larger, edges) for larger in edges[node])
            self._bounds[node] = frozenset({node}).union(*above)
        return self._bounds[node]

    def common(self, nodes: Iterable[str]) -> frozenset[str]:
        """Return the common upper bounds of ``nodes``."""
        first, *rest = (self._bounds[node] for node in nodes)
        return first.intersection(*rest)

    def join(self, nodes: Iterable[str]) -> str:
        """Return the join, or least upper bound, of ``nodes``.

        Raises:
            PromotionError: If there is none, or no least one.
        """
        nodes = tuple(dict.fromkeys(nodes))
        common = self.common(nodes)
        least = [node for node in common if common <= self._bounds[node]]
        if not least:
            raise PromotionError(f"{' and '.join(nodes)} have no common dtype")
        return least[0]

    def path(self, low: str, high: str) -> tuple[str, ...]:
        """Return a shortest path from ``low`` up to ``high``, both included.

        Raises:
            PromotionError: If ``low`` may not become ``high``.
        """
        paths: list[tuple[str, ...]] = [(low,)]
        for path in paths:  # breadth first: it grows while it is read
            if path[-1] == high:
                return path
            higher = (x for x in self._edges[path[-1]] if high in self._bounds[x])
            paths.extend((*path, x) for x in higher)
        raise PromotionError(f"{low} does not become {high}")

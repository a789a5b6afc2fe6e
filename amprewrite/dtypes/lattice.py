"""Promotion as order: who may become whom, and the least that two may become."""

from collections.abc import Iterable, Mapping

from amprewrite.errors import PromotionError


class Lattice:
    """A partial order of dtypes, given by the next larger ones of each."""

    def __init__(self, edges: Mapping[str, Iterable[str]]) -> None:
        """Keep for each dtype everything it may become, itself included."""
        self._bounds: dict[str, frozenset[str]] = {}
        for node in edges:
            self._climb(node, edges)

    def _climb(self, node: str, edges: Mapping[str, Iterable[str]]) -> frozenset[str]:
        if node not in self._bounds:
            above = (self._climb(larger, edges) for larger in edges[node])
            self._bounds[node] = frozenset({node}).union(*above)
        return self._bounds[node]

    def common(self, nodes: Iterable[str]) -> frozenset[str]:
        """Return everything that all of ``nodes`` may become."""
        first, *rest = (self._bounds[node] for node in nodes)
        return first.intersection(*rest)

    def join(self, nodes: Iterable[str]) -> str:
        """Return the least dtype that all of ``nodes`` may become.

        Raises:
            PromotionError: If there is none, or no least one.
        """
        nodes = tuple(dict.fromkeys(nodes))
        common = self.common(nodes)
        least = [node for node in common if common <= self._bounds[node]]
        if not least:
            raise PromotionError(f"{' and '.join(nodes)} have no common dtype")
        return least[0]

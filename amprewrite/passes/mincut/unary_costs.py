"""Unary costs of the min-cut variables, and the constant cost."""

from collections.abc import Iterable

from amprewrite.passes.mincut.max_flow import FULL, LOW, Terms


class Ledger:
    """Ledger of the costs of a placement.

    Attributes:
        terms: Terms of two variables.
        constant: Cost common to all placements.
    """

    def __init__(self, low_size: int, full_size: int) -> None:
        """Start with the two constants, and no costs.

        Args:
            low_size: Bytes of one element of the low dtype.
            full_size: Bytes of one element of the full dtype.
        """
        self.low_size, self.full_size = low_size, full_size
        self.terms, self.constant = Terms(), 0
        self._alone = [0, 0]  # by variable: extra cost of full over low

    @property
    def variables(self) -> int:
        """Number of variables, the two constants included."""
        return len(self._alone)

    def new(self) -> int:
        """Return a new variable."""
        self._alone.append(0)
        return len(self._alone) - 1

    def either(self, variables: Iterable[int]) -> int:
        """Return a variable that is full if one of ``variables`` is."""
        found = set(variables)
        if FULL in found or len(found) == 1:
            return FULL if FULL in found else found.pop()
        new = self.new()
        for variable in sorted(found):
            self.terms.imply(variable, new)
        return new

    def size(self, variable: int, elements: int) -> None:
        """Charge the bytes of ``elements`` in the dtype of ``variable``."""
        self.constant += elements * self.low_size
        self._alone[variable] += elements * (self.full_size - self.low_size)

    def pay_full(self, variable: int, cost: int) -> None:
        """Charge ``cost`` where ``variable`` is full; a negative one is a reward."""
        self._alone[variable] += cost

    def pay_low(self, variable: int, cost: int) -> None:
        """Charge ``cost`` where ``variable`` is low; a negative one is a reward."""
        self._alone[variable] -= cost
        self.constant += cost

    def add_terms(self) -> None:
        """Convert the costs of single variables into terms, once, at the end."""
        self.constant += self._alone[FULL]
        for variable, cost in enumerate(self._alone):
            if variable > FULL and cost > 0:
                self.terms.pay(variable, LOW, cost)
            elif variable > FULL and cost < 0:
                self.terms.pay(FULL, variable, -cost)
                self.constant += cost

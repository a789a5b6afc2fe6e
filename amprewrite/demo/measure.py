"""The measurements of the demo: errors, neighbours, bytes and times, as plain data."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import nn

Run = Callable[..., torch.Tensor]
"""Function of the encoder's arguments to f[batch, width]."""


LEAST, MOST = 3, 200
"""Least and largest number of rounds; without bfloat16 hardware a round is slow."""


@dataclass(frozen=True)
class Errors:
    """Errors of the vectors of one variant against those computed in float64.

    Attributes:
        median: Median over the sentences of the relative error ``|v - r| / |r|``.
        worst: The largest.
        cosine: The least cosine between a vector and its reference.
        dtype: Dtype of the vectors.
    """

    median: float
    worst: float
    cosine: float
    dtype: str


@dataclass(frozen=True)
class Swap:
    """Two neighbours of a sentence that changed places.

    Attributes:
        sentence: Index of the sentence.
        nearer: Index of the one that is nearer in float64.
        farther: Index of the one that is farther in float64, and came out nearer.
        margin: Difference of their cosines in float64.
    """

    sentence: int
    nearer: int
    farther: int
    margin: float


@dataclass(frozen=True)
class Neighbours:
    """Agreement of the nearest neighbours of every sentence with those in float64.

    Attributes:
        same_nearest: Number of sentences whose nearest neighbour is the same.
        sentences: Number of sentences.
        swaps: Pairs in a sentence's whole order that changed places, widest first.
        pairs: Number of pairs compared.
    """

    same_nearest: int
    sentences: int
    swaps: tuple[Swap, ...]
    pairs: int


@dataclass(frozen=True)
class Timing:
    """Seconds of every variant on one input, measured in turns in one process.

    Attributes:
        batch: Sentences.
        tokens: Tokens in each.
        seconds: For each variant one time for each round.
    """

    batch: int
    tokens: int
    seconds: Mapping[str, Sequence[float]]

    def milliseconds(self, variant: str) -> float:
        """Return the median time of ``variant``."""
        return 1e3 * statistics.median(self.seconds[variant])

    def speedup(self, variant: str, over: str) -> float:
        """Return the median over rounds of time of ``over`` / time of ``variant``."""
        pairs = zip(self.seconds[over], self.seconds[variant], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def errors(vectors: torch.Tensor, reference: torch.Tensor) -> Errors:
    """Return the errors of ``vectors`` against ``reference`` (f64), row by row."""
    ours = vectors.double()
    squares = (ours - reference).square().sum(1) / reference.square().sum(1)
    relative = squares.sqrt()
    cosine = torch.cosine_similarity(ours, reference, dim=1)
    return Errors(
        median=float(torch.quantile(relative, 0.5)),
        worst=float(torch.amax(relative)),
        cosine=float(cosine.min()),
        dtype=str(vectors.dtype).removeprefix("torch."),
    )


def similarity(vectors: torch.Tensor) -> torch.Tensor:
    """Return f64[n, n], the cosine of every pair of rows."""
    rows = torch.nn.functional.normalize(vectors.double(), dim=1)
    return rows @ rows.T


def neighbours(vectors: torch.Tensor, reference: torch.Tensor) -> Neighbours:
    """Compare each row's order of the other rows with that in ``reference``."""
    ours, truth = similarity(vectors), similarity(reference)
    count = len(truth)
    same, pairs, swaps = 0, 0, list[Swap]()
    for row in range(count):
        others = [other for other in range(count) if other != row]
        near = max(others, key=lambda other: float(truth[row, other]))
        same += near == max(others, key=lambda other: float(ours[row, other]))
        for one, two in combinations(others, 2):
            pairs += 1
            margin = float(truth[row, one] - truth[row, two])
            if margin * float(ours[row, one] - ours[row, two]) < 0:
                nearer, farther = (one, two) if margin > 0 else (two, one)
                swaps.append(Swap(row, nearer, farther, abs(margin)))
    swaps.sort(key=lambda swap: -swap.margin)
    return Neighbours(same, count, tuple(swaps), pairs)


def parameter_bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters of ``model``, each counted once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def timing(
    variants: Mapping[str, Run], args: Sequence[torch.Tensor], budget: float
) -> Timing:
    """Time the variants in turns, so that all see the same state of the machine.

    Args:
        variants: Functions to time, by name.
        args: Arguments; the first is [batch, tokens].
        budget: Seconds after which no other round starts; one round that is not
            counted comes before.
    """
    for run in variants.values():
        run(*args)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    end = time.perf_counter() + budget
    rounds = 0
    while rounds < LEAST or (rounds < MOST and time.perf_counter() < end):
        rounds += 1
        for name, run in variants.items():
            start = time.perf_counter()
            run(*args)
            seconds[name].append(time.perf_counter() - start)
    batch, tokens = args[0].shape
    return Timing(batch, tokens, seconds)

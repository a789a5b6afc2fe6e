"""Rules that follow from extents: sums of independent terms, and dropped terms.

A sum of n independent products of unit numbers has standard deviation sqrt(n). Forward,
n is what one output sums; backward, in how many outputs an input is a term. Extents
may be numbers of a tracer: only arithmetic is done with them, so that no batch size is
baked into a captured program. The rules are those of Unit Scaling (Blake, Orr and
Luschi, ICML 2023) and of u-muP (Blake et al., 2024), except where it is said.
"""

from typing import Any

from amprewrite.unit_scaling.rules.model import Factors

Extent = Any
"""A positive integer, or an extent of a tracer."""


def _root(terms: Extent) -> Any:
    """Return the factor that undoes a sum of ``terms`` independent terms.

    Of an empty batch there is nothing to undo.
    """
    return 1.0 if isinstance(terms, (int, float)) and not terms else terms**-0.5


def linear(*, fan_in: Extent, fan_out: Extent, batch: Extent) -> Factors:
    """Sum ``fan_in`` products; the weight and the bias get a term from each row.

    The bias is zero at first: it adds nothing to the output's scale.
    """
    rows = _root(batch)
    backward = {"input": _root(fan_out), "weight": rows, "bias": rows}
    return Factors(_root(fan_in), backward, ("input",))


def linear_readout(*, fan_in: Extent, fan_out: Extent, batch: Extent) -> Factors:
    """Scale as :func:`linear`, but the output by 1/fan_in, the readout of muP."""
    found = linear(fan_in=fan_in, fan_out=fan_out, batch=batch)
    return found._replace(forward=1 / fan_in)


def matmul(
    *,
    rows: Extent,
    inner: Extent,
    columns: Extent,
    left_copies: Extent = 1,
    right_copies: Extent = 1,
) -> Factors:
    """Sum ``inner`` products; copies are those that broadcasting makes."""
    left = _root(columns * left_copies)
    backward = {"left": left, "right": _root(rows * right_copies)}
    return Factors(_root(inner), backward, ("left", "right"))


def conv(  # noqa: PLR0913  # one keyword for each extent
    *,
    fan_in: Extent,
    fan_out: Extent,
    taps: Extent,
    inputs: Extent,
    outputs: Extent,
    batch: Extent,
    groups: Extent = 1,
) -> Factors:
    """Sum over the channels of a group and over the taps of the kernel.

    Args:
        fan_in: Input channels, of all groups.
        fan_out: Output channels, of all groups.
        taps: Elements of the kernel: the product of its extents.
        inputs: Positions of the input: the product of its spatial extents.
        outputs: Positions of the output. ``taps * outputs / inputs`` is how many
            outputs an input position reaches on average, exact without padding; the
            published rule has the stride instead.
        batch: Product of the batch extents.
        groups: Number of groups.
    """
    reached = fan_out * taps * outputs / (groups * inputs)
    positions = _root(batch * outputs)
    backward = {"input": _root(reached), "weight": positions, "bias": positions}
    return Factors(_root(fan_in * taps / groups), backward, ("input",))


def embedding(*, vocabulary: Extent, tokens: Extent) -> Factors:
    """Look rows up; each row of the table gets tokens/vocabulary gradients."""
    return Factors(1.0, {"weight": vocabulary**0.5 * _root(tokens)}, ())


def norm(*, batch: Extent) -> Factors:
    """Normalise: unit as it is; weight and bias get a term from each of ``batch`` rows.

    The gradient of the input has variance (n - 2)/(n - 3) over n numbers: 1.
    """
    rows = _root(batch)
    return Factors(1.0, {"input": 1.0, "weight": rows, "bias": rows}, ())


def add(*, left: Extent = 1, right: Extent = 1) -> Factors:
    """Add two unit numbers; the gradient of a broadcast one sums over its copies.

    Args:
        left: Copies that broadcasting makes of each element of the left operand.
        right: Of the right one.
    """
    backward = {"left": _root(left), "right": _root(right)}
    return Factors(2**-0.5, backward, ("left", "right"))


def dropout(*, p: float) -> Factors:
    """Drop with probability p, and divide the rest by 1 - p."""
    keep = (1 - p) ** 0.5
    return Factors(keep, {"input": keep}, ("input",))


def residual(*, tau: float) -> Factors:
    """Weigh a branch by tau and the skip by 1, so that squares add up to 1.

    The factors stand where the paths part, for gradients, and again where they meet,
    for outputs; ``forward`` is that of the branch.
    """
    whole = (1 + tau**2) ** 0.5
    return Factors(tau / whole, {"branch": tau / whole, "skip": 1 / whole}, ())


def mse_loss(*, size: Extent) -> Factors:
    """Take the mean of squares; its gradient 2(x - t)/size has rms sqrt(8)/size.

    The loss itself stays the mean: a factor on it would depend on the batch.
    """
    gradient = size * 8**-0.5
    return Factors(1.0, {"input": gradient, "target": gradient}, ())

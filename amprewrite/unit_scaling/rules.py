"""Rules of ops: the factors of outputs and gradients, and the source of each."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.constraints import Factor, apply_constraint
from amprewrite.unit_scaling.moments import (
    NONLINEARITIES,
    Moments,
    gaussian_moments,
    moments_of,
    softmax_moments,
)

# Rules: the factors of one op, forward and backward, and where they come from.

Kind = Literal["closed form", "quadrature", "empirical"]
"""Source of a rule: an exact formula, an integral, or a measured sample."""


class Factors(NamedTuple):
    """Factors of one op before any constraint.

    Attributes:
        forward: Factor of the output.
        backward: Factor of the gradient of each differentiable input, by its name.
        joined: The inputs that a constraint joins with the output, in order. Others,
            weights as a rule, are cut edges: their factors stay as they are.
    """

    forward: Factor
    backward: Mapping[str, Factor]
    joined: tuple[str, ...]


def constrained(factors: Factors, constraint: str | None) -> Factors:
    """Return the factors as a constraint wants them.

    Args:
        factors: Those of a rule.
        constraint: A name of :data:`~amprewrite.unit_scaling.CONSTRAINTS`, or None.

    Raises:
        UnitScalingError: The constraint is unknown, or joins another number of inputs.
    """
    backward = dict(factors.backward)
    given = [backward[name] for name in factors.joined]
    forward, *chosen = apply_constraint(constraint, factors.forward, *given)
    backward |= dict(zip(factors.joined, chosen, strict=True))
    return Factors(forward, backward, factors.joined)


@dataclass(frozen=True)
class Rule:
    """The rule of one op for given extents, before any constraint.

    Attributes:
        op: Name of the op.
        mult: Its multiplier.
        kind: Source of the factors.
        factors: The factors.
        why: What the kind is based on, in words.
        shape: The extents and parameters that were given.
        moments: Of an elementwise op; None of any other.
    """

    op: str
    mult: float
    kind: Kind
    factors: Factors
    why: str
    shape: Mapping[str, float] = field(default_factory=dict[str, float])
    moments: Moments | None = None

    def pair(self) -> tuple[Factor, Factor | Mapping[str, Factor]]:
        """Return the forward factor and the backward one, by input if several."""
        backward = self.factors.backward
        one = next(iter(backward.values())) if len(backward) == 1 else backward
        return self.factors.forward, one

    def __str__(self) -> str:
        """Return one line: the op, its factors, their kind."""
        backward = ", ".join(f"{k} {v:.6g}" for k, v in self.factors.backward.items())
        return (
            f"{self.op}(mult={self.mult:g}): forward {self.factors.forward:.6g}, "
            f"backward {backward} ({self.kind}: {self.why})"
        )


# Rules that follow from extents: sums of independent terms, and dropped terms.
#
# A sum of n independent products of unit numbers has standard deviation sqrt(n).
# Forward, n is what one output sums; backward, in how many outputs an input is a term.
# Extents may be numbers of a tracer: only arithmetic is done with them, so that no
# batch size is baked into a captured program. The rules are those of Unit Scaling
# (Blake, Orr and Luschi, ICML 2023) and of u-muP (Blake et al., 2024), except where it
# is said.

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


# Rules of elementwise functions of one number, and of two: gated linear units.

GATES = {
    "gelu_glu": "gelu",
    "relu_glu": "relu",
    "sigmoid_glu": "sigmoid",
    "silu_glu": "silu",
    "tanh_glu": "tanh",
}
"""Gated linear units x f(gate), and the function f of each."""

STEADY = 4.0
"""Ratio of mean and deviation from which on an output counts as a gain; a choice."""

WHY: dict[Kind, str] = {
    "closed form": "exact moments of a Gaussian number, in float64",
    "quadrature": "moments of a Gaussian number, integrated in float64",
}


def unary_factors(moments: Moments) -> Factors:
    """Return factors that give standard deviation 1 both ways."""
    return Factors(1 / moments.std, {"input": 1 / moments.gradient}, ("input",))


def gate_factor(moments: Moments) -> float:
    """Return the factor of an output that others are multiplied with: its rms is 1."""
    return 1 / moments.rms


def varies(moments: Moments) -> bool:
    """Return whether an output varies: :data:`STEADY` times its mean, or more.

    One that hardly does, as exp(x / 100), is a gain, and has no deviation to scale.
    """
    return moments.std * STEADY >= abs(moments.mean)


def gated_factors(moments: Moments) -> Factors:
    """Return factors of x f(g), which has mean 0 and E[x^2 f(g)^2] = E[f(g)^2].

    The gradient of x is that times another; the gradient of g has E[f'(g)^2].
    """
    backward = {"input": 1 / moments.rms, "gate": 1 / moments.gradient}
    return Factors(1 / moments.rms, backward, ("input", "gate"))


def elementwise_rule(op: str, mult: float, parameters: dict[str, float]) -> Rule:
    """Return the rule of a function by name, or of its gated linear unit.

    Args:
        op: A name of :data:`~amprewrite.unit_scaling.moments.NONLINEARITIES` or
            :data:`GATES`.
        mult: The multiplier m of f(mx)/m.
        parameters: Parameters of the function that are not its defaults.

    Raises:
        UnitScalingError: The output or the gradient has no finite scale above 0.
    """
    function = GATES.get(op, op)
    given = dict(NONLINEARITIES[function].parameters) | parameters
    try:
        moments, closed = moments_of(function, mult, tuple(given.items()))
    except OverflowError:
        moments, closed = Moments(0.0, float("inf"), float("inf")), True
    found = _usable(op, mult, moments)
    factors = gated_factors(found) if op in GATES else unary_factors(found)
    kind: Kind = "closed form" if closed else "quadrature"
    return Rule(op, mult, kind, factors, WHY[kind], given, found)


def rule_of_function(
    value: Callable[[Any], Any],
    derivative: Callable[[Any], Any],
    mult: float = 1.0,
    *,
    name: str = "function",
) -> Rule:
    """Return the rule of any elementwise function f, by quadrature.

    Args:
        value: f, on float64 arrays of shape (n,).
        derivative: f', the same; where f has a kink, either side.
        mult: The multiplier m: the rule is that of f(mx)/m.
        name: Name of the op in the rule.

    Returns:
        A rule of kind ``quadrature``, with the moments.

    Raises:
        UnitScalingError: f is not finite, or the quadrature does not converge.
    """
    moments = gaussian_moments(
        lambda x: value(mult * x) / mult, lambda x: derivative(mult * x)
    )
    found = _usable(name, mult, moments)
    why = WHY["quadrature"]
    return Rule(name, mult, "quadrature", unary_factors(found), why, {}, found)


def _usable(op: str, mult: float, moments: Moments) -> Moments:
    """Return the moments, if factors can be made of them."""
    if moments.is_usable():
        return moments
    msg = (
        f"{op} with mult={mult:g}: the output has variance {moments.variance:g} and "
        f"its gradient {moments.slope:g}; want both finite and above 0: take a mult "
        "nearer to 1"
    )
    raise UnitScalingError(msg)


# Rules of softmax, attention and cross entropy.
#
# All three are exact for independent Gaussian logits, at every size and temperature;
# the curves that u-muP fits are off by 18 % for 1024 logits at mult=1.

HIDDEN = 1e3
"""Distance of masked logits from the largest one of their row, at least.

Masks add -1e4 (for float16), -1e9, the least finite number or minus infinity."""
EXACT_ROWS = 64
"""Rows of a causal softmax that are each computed; longer ones are interpolated."""
GROWTH = 1.09
"""From one interpolated row to the next."""


def softmax(*, size: int, mult: float = 1.0) -> Factors:
    """Bring a softmax over ``size`` numbers to root mean square 1.

    The output is positive: its mean counts, as in what it multiplies.

    Raises:
        UnitScalingError: A softmax of one number is 1, and has no gradient.
    """
    if size == 1:
        msg = "softmax over size=1 is 1 and has no gradient; want two or more"
        raise UnitScalingError(msg)
    found = softmax_moments(size, mult)
    forward, backward = found.square**-0.5, found.slope**-0.5 / mult
    return Factors(forward, {"input": backward}, ("input",))


def visible_logits(logits: NDArray[Any], axis: int) -> dict[int, int]:
    """Return how many rows have how many logits that a mask does not hide.

    Args:
        logits: Logits as a softmax gets them, of any shape.
        axis: Dimension of the softmax.

    Returns:
        Number of rows by the number of logits that are at most :data:`HIDDEN` below the
        largest one of their row. A row that is hidden as a whole sees all, as softmax
        does.
    """
    wide = logits.astype(np.float64)
    high = wide.max(axis, keepdims=True)
    seen = np.where(np.isfinite(high), wide > high - HIDDEN, True).sum(axis)
    sizes, rows = np.unique(seen, return_counts=True)
    return {int(n): int(count) for n, count in zip(sizes, rows, strict=True)}


def masked_softmax(visible: Mapping[int, int], size: int) -> Factors:
    """Return the factors of a softmax with a mask: rms 1 over all rows and columns.

    Args:
        visible: Number of rows by the number of logits that they see.
        size: Extent of a row.

    Raises:
        UnitScalingError: No row sees more than one logit: there is no gradient.
    """
    rows = sum(visible.values())
    found = {n: softmax_moments(n, 1.0) for n in visible if n > 1}
    square = sum(
        count * (n * found[n].square if n in found else n)
        for n, count in visible.items()
    )
    slope = sum(visible[n] * n * moments.slope for n, moments in found.items())
    if not slope:
        msg = "softmax with a mask that leaves one number of each row has no gradient"
        raise UnitScalingError(msg)
    entries = rows * size
    backward = {"input": (entries / slope) ** 0.5}
    return Factors((entries / square) ** 0.5, backward, ("input",))


@functools.lru_cache(maxsize=1024)
def _row_sums(
    queries: int, keys: int, spread: float, *, causal: bool
) -> tuple[float, float]:
    """Return the sums over rows of n E[p^2] and of n E[slope], n the keys of a row."""
    if not causal:
        found = softmax_moments(keys, spread)
        return queries * keys * found.square, queries * keys * found.slope
    rows = np.minimum(np.arange(1, queries + 1), keys)
    knots = [n for n in range(1, rows[-1] + 1) if n <= EXACT_ROWS]
    while knots[-1] < rows[-1]:
        knots.append(min(int(knots[-1] * GROWTH), int(rows[-1])))
    known = [softmax_moments(n, spread) for n in knots]
    # n times the moments is close to a power of n: its logarithm is nearly linear.
    squares = [math.log(n * x.square) for n, x in zip(knots, known, strict=True)]
    slopes = [math.log(n * x.slope) for n, x in zip(knots[1:], known[1:], strict=True)]
    row, knot = np.log(rows), np.log(knots)
    square = np.exp(np.interp(row, knot, squares)).sum()
    if not slopes:
        return float(square), 0.0
    slope = np.exp(np.interp(row[rows > 1], knot[1:], slopes)).sum()
    return float(square), float(slope)


def attention(  # noqa: PLR0913  # one keyword for each extent
    *,
    queries: int,
    keys: int,
    head: int,
    value_head: int | None = None,
    causal: bool = False,
    p: float = 0.0,
    mult: float = 1.0,
) -> Factors:
    """Bring softmax(mult/head * q k^T) v to root mean square 1, and each gradient.

    Logits are close to Gaussian, of standard deviation mult/sqrt(head), as 1/head (and
    not its root) multiplies the products. A row of n keys has mean square n E[p^2];
    gradients of the logits have E[slope] times the width of the values, and reach the
    query as a sum over keys, the key as a sum over queries.

    Args:
        queries: Rows of the scores.
        keys: Columns of the scores.
        head: Width of a query and a key.
        value_head: Width of a value; that of a key if None.
        causal: Whether row i sees the first i + 1 keys only.
        p: Probability of dropout.
        mult: The multiplier.
    """
    width = value_head or head
    square, slope = _row_sums(queries, keys, mult / head**0.5, causal=causal)
    if not slope:
        msg = f"attention over keys={keys} has no gradient; want two keys or more"
        raise UnitScalingError(msg)
    keep = (1 - p) ** 0.5
    logits = (width * slope) ** 0.5 * mult / head
    backward = {
        "query": keep * queries**0.5 / logits,
        "key": keep * keys**0.5 / logits,
        "value": keep * (keys / square) ** 0.5,
    }
    return Factors(
        keep * (queries / square) ** 0.5, backward, ("query", "key", "value")
    )


def cross_entropy(*, classes: int, batch: float, mult: float = 1.0) -> Factors:
    """Give the gradient of the mean loss root mean square 1; the loss stays the mean.

    It is (softmax(mult * x) - onehot) mult / batch, and for targets that do not depend
    on x, the mean square of a row of it is 1 - 2/V + V E[p^2] over V classes.

    Raises:
        UnitScalingError: One class is certain: there is no gradient.
    """
    if classes == 1:
        msg = "cross_entropy over classes=1 is 0 everywhere; want two classes or more"
        raise UnitScalingError(msg)
    square = softmax_moments(classes, mult).square
    row = (1 - 2 / classes + classes * square) / classes
    return Factors(1.0, {"input": batch * row**-0.5 / mult}, ())


# The table of rules: every scaled op, the extents that it needs, its factors.


@dataclass(frozen=True)
class ShapedOp:
    """An op with factors that depend on extents.

    Attributes:
        factors: Takes extents by keyword, and ``mult`` where ``scales``.
        needs: Extents without which there is no rule.
        takes: Further arguments, with defaults.
        scales: Whether a multiplier changes the rule.
        kind: Source of the factors.
        why: What the kind is based on.
    """

    factors: Callable[..., Factors]
    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()
    scales: bool = False
    kind: Kind = "closed form"
    why: str = field(default="sums of independent terms")


_INTEGRAL = "moments of a softmax of Gaussian logits, integrated in float64"
_LINEAR = ("fan_in", "fan_out", "batch")
_CONV = ("fan_in", "fan_out", "taps", "inputs", "outputs", "batch")
_TAU = "squares of the weights of branch and skip add up to 1"

SHAPED: Mapping[str, ShapedOp] = {
    "add": ShapedOp(add, (), ("left", "right")),
    "conv1d": ShapedOp(conv, _CONV, ("groups",)),
    "conv2d": ShapedOp(conv, _CONV, ("groups",)),
    "cross_entropy": ShapedOp(
        cross_entropy, ("classes", "batch"), (), True, "quadrature", _INTEGRAL
    ),
    "dropout": ShapedOp(dropout, ("p",), why="the share that is kept"),
    "embedding": ShapedOp(embedding, ("vocabulary", "tokens")),
    "layer_norm": ShapedOp(norm, ("batch",)),
    "linear": ShapedOp(linear, _LINEAR),
    "linear_readout": ShapedOp(linear_readout, _LINEAR),
    "matmul": ShapedOp(
        matmul, ("rows", "inner", "columns"), ("left_copies", "right_copies")
    ),
    "mse_loss": ShapedOp(mse_loss, ("size",)),
    "residual_add": ShapedOp(residual, ("tau",), why=_TAU),
    "residual_apply": ShapedOp(residual, ("tau",), why=_TAU),
    "residual_split": ShapedOp(residual, ("tau",), why=_TAU),
    "rms_norm": ShapedOp(norm, ("batch",)),
    "scaled_dot_product_attention": ShapedOp(
        attention,
        ("queries", "keys", "head"),
        ("value_head", "causal", "p"),
        True,
        "quadrature",
        _INTEGRAL,
    ),
    "softmax": ShapedOp(softmax, ("size",), (), True, "quadrature", _INTEGRAL),
}
"""Ops with factors that depend on extents, by name."""

RULES = tuple(sorted({*SHAPED, *NONLINEARITIES, *GATES}))
"""Names of all ops that have a rule."""


def derive_rule(name: str, mult: float = 1.0, **shape: Any) -> Rule:
    """Return the rule of an op, with the source of its factors.

    Args:
        name: A name of :data:`RULES`.
        mult: The multiplier m, above 0: an elementwise op computes f(mx)/m, softmax,
            attention and cross entropy multiply their logits. Others have none.
        **shape: Extents and parameters, such as ``fan_in=256`` or ``alpha=1.0``.

    Raises:
        UnitScalingError: The name is unknown, an extent is missing or not known to
            the op, or the multiplier is not usable.
    """
    if name not in RULES:
        near = get_close_matches(name, RULES, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"there are {', '.join(RULES)};"
        )
        msg = (
            f"no rule of unit scaling for {name!r}; {hint} rule_of_function and "
            "measure_rule make one of a function of your own"
        )
        raise UnitScalingError(msg)
    if not 0 < mult < math.inf:
        msg = f"{name}: mult is {mult}; want a finite number above 0, such as 1.0"
        raise UnitScalingError(msg)
    if name not in SHAPED:
        function = GATES.get(name, name)
        _check_names(name, shape, (), tuple(NONLINEARITIES[function].parameters))
        return elementwise_rule(name, mult, dict(shape))
    op = SHAPED[name]
    _check_names(name, shape, op.needs, op.takes)
    factors = op.factors(**shape, **({"mult": mult} if op.scales else {}))
    return Rule(name, mult, op.kind, factors, op.why, dict(shape))


def rule(
    name: str, mult: float = 1.0, **shape: Any
) -> tuple[Factor, Factor | Mapping[str, Factor]]:
    """Return the factors of an op before any constraint.

    The output times the first has scale 1 for unit Gaussian inputs; the gradient of an
    input times the second has scale 1 for a unit gradient of the output. Scale means
    standard deviation, for softmax and gated units root mean square.

    Args:
        name: A name of :data:`RULES`.
        mult: The multiplier, as for :func:`derive_rule`.
        **shape: Extents and parameters.

    Returns:
        Forward factor and backward factor; the second is a mapping by name of the input
        where an op has several.

    Raises:
        UnitScalingError: As :func:`derive_rule`.
    """
    return derive_rule(name, mult, **shape).pair()


def _check_names(
    name: str, shape: Mapping[str, Any], needs: tuple[str, ...], takes: tuple[str, ...]
) -> None:
    """Refuse extents that are missing or not known."""
    missing = [key for key in needs if key not in shape]
    unknown = [key for key in shape if key not in (*needs, *takes)]
    if not missing and not unknown:
        return
    parts = [
        *([f"is given without {', '.join(missing)}"] if missing else []),
        *([f"does not take {', '.join(unknown)}"] if unknown else []),
    ]
    wants = ", ".join([*needs, *(f"{key} (optional)" for key in takes)]) or "none"
    msg = f"the rule of {name} {' and '.join(parts)}; its extents: {wants}"
    raise UnitScalingError(msg)

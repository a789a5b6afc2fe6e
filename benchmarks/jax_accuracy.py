"""Errors against float64, casts and saved bytes of every JAX zoo model.

Beside the conversion run what users would use instead: float32, and all weights and
inputs cast to bfloat16.

    python -m benchmarks.jax_accuracy --out benchmarks/results/jax_accuracy.json
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.extend import core as jex

import amprewrite
from amprewrite.frameworks.jaxpr.compare import measure as run_all
from amprewrite.measure.runs import Call
from benchmarks import jax_zoo
from benchmarks.jax_modules import MODULES

POLICIES = ("bf16", "autocast-cuda")
"""Policies that are compared."""

BUILDERS = jax_zoo.ZOO | MODULES
"""The models, by name."""

LOW_BYTES = 2
"""Bytes of an element of a low dtype."""

CONTRACTIONS = ("dot_general", "conv_general_dilated")


MOVES = ("convert_element_type", "copy", "reshape", "squeeze", "transpose")
"""Primitives that make another form of the same values."""


def saved_bytes(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, int]:
    """Return the bytes that the forward pass leaves for the backward pass.

    Returns:
        The bytes of what it computes, and of other forms of its arguments, such as low
        copies of weights; the arguments themselves are there anyway.
    """
    floats, rest = _parted(args)

    def forward(given: Any) -> Any:
        return jax.vjp(lambda held: function(*_joined(held, rest)), given)[1]

    jaxpr = jax.make_jaxpr(forward)(floats).jaxpr
    forms = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in MOVES and eqn.invars[0] in forms:
            forms.add(eqn.outvars[0])
    saved = {v for v in jaxpr.outvars if not isinstance(v, jex.Literal)}
    saved -= set(jaxpr.invars)
    return _bytes(saved - forms), _bytes(saved & forms)


def _bytes(variables: set[Any]) -> int:
    return sum(int(v.aval.size) * v.aval.dtype.itemsize for v in variables)


def _parted(tree: Any) -> tuple[list[Any], Any]:
    """Return the float leaves of a tree, and how to put others in their place."""
    leaves, structure = tree_util.tree_flatten(tree)
    is_float = [jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in leaves]
    floats = [x for x, flag in zip(leaves, is_float, strict=True) if flag]
    return floats, (leaves, is_float, structure)


def _joined(floats: Any, rest: Any) -> Any:
    leaves, is_float, structure = rest
    supply = iter(floats)
    pairs = zip(leaves, is_float, strict=True)
    joined = [next(supply) if flag else x for x, flag in pairs]
    return tree_util.tree_unflatten(structure, joined)


def contractions(function: Callable[..., Any], args: tuple[Any, ...]) -> list[int]:
    """Return how many contractions read low operands, and how many there are.

    In the forward and the backward pass together.
    """
    floats, rest = _parted(args)

    def loss(given: Any) -> Any:
        return jnp.square(function(*_joined(given, rest)).astype(jnp.float32)).sum()

    found = list(_contractions(jax.make_jaxpr(jax.grad(loss))(floats).jaxpr))
    low = [all(v.aval.dtype.itemsize <= LOW_BYTES for v in eqn.invars) for eqn in found]
    return [sum(low), len(low)]


def _contractions(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in CONTRACTIONS:
            yield eqn
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from _contractions(getattr(inner, "jaxpr", inner))


def low_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with every float in bfloat16."""
    floats, rest = _parted(args)
    return _joined([x.astype(jnp.bfloat16) for x in floats], rest)


def _joint(found: Any, wanted: Any) -> float:
    pairs = [(found[name], wanted[name]) for name in wanted]
    difference = sum(float(np.sum((a - r) ** 2)) for a, r in pairs)
    return (difference / sum(float(np.sum(r**2)) for _, r in pairs)) ** 0.5


def measure(name: str) -> dict[str, Any]:
    """Return the figures of one model."""
    function, args = BUILDERS[name](jax_zoo.TINY)
    full, _ = saved_bytes(function, args)
    row: dict[str, Any] = {"saved bytes": full, "policies": {}}
    low = low_arguments(args)
    for policy in POLICIES:
        converted = amprewrite.convert(function, policy, args=args)
        measured = run_all(function, converted, Call(args, {}, gradients=True))
        reference = measured.runs["reference"]
        errors = {
            label: {
                "error": _joint(run.outputs, reference.outputs),
                "gradient error": _joint(run.gradients, reference.gradients),
            }
            for label, run in measured.runs.items()
            if label != "reference"
        }
        ours, jitted = errors.pop("converted"), errors.pop("converted, jitted")
        row.update(errors, failures=dict(measured.failures))
        plan, (saved, copies) = converted.plan, saved_bytes(converted, args)
        row["policies"][policy] = {
            **ours,
            **{f"{key}, jitted": value for key, value in jitted.items()},
            "lowered": len(plan.lowered),
            "ops": len(plan.decisions),
            "casts": plan.cost.casts,
            "cast bytes": plan.cost.cast_bytes,
            "contractions low / all": contractions(converted, args),
            "saved bytes / float32": saved / full,
            "bytes of low copies of arguments": copies,
        }
    if "cast all" in row:
        row["cast all"]["contractions low / all"] = contractions(function, low)
        row["cast all"]["saved bytes / float32"] = saved_bytes(function, low)[0] / full
    return row


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(BUILDERS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {}
    for name in options.models:
        rows[name] = measure(name)
        print(name, json.dumps(rows[name]), flush=True)
    found = {
        "what": "relative L2 error against float64 over all outputs, and over all "
        "gradients of a mean square loss; size TINY, unit gain; saved bytes are what "
        "the forward pass computes and leaves for the backward pass",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

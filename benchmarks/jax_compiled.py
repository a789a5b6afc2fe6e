"""What plans become in the programs that XLA compiles: casts, their bytes, errors.

    python -m benchmarks.jax_compiled --out benchmarks/results/jax_compiled.json

Each model runs by the prices of both targets and the placements ``promote`` and
``optimal``. A conversion is counted where it crosses memory: outside of fusions, or as
a fusion that does nothing else.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

import amprewrite
from benchmarks import jax_zoo

TARGETS = ("eager", "compiled")
"""Targets by whose prices plans are made."""

PLACEMENTS = ("promote", "optimal")
"""Placements that are compared."""

SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
"""Bytes of an element, as XLA names its float types."""

MOVES = (
    *("parameter", "bitcast", "copy", "transpose", "reshape"),
    *("broadcast", "slice", "dynamic-slice", "constant"),
)
"""What may stand beside a conversion in a kernel that computes nothing else."""

LINE = re.compile(
    r"^\s+(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<type>\w+)\[(?P<shape>[\d,]*)\]\S* "
    r"(?P<op>[\w\-]+)\((?P<operands>[^)]*)\)(?P<rest>.*)"
)
"""An instruction with one result."""

LOOP = re.compile(r"body=%([\w.\-]+).*\"known_trip_count\":\{\"n\":\"(\d+)\"\}")
"""A loop: its body, and how often it turns."""

WRITTEN = "convert_element_type"
"""Stands in the metadata of conversions that a program writes; XLA's own have none."""

Tree = Any


def gradient(build: Callable[[jax_zoo.Size], jax_zoo.Case]) -> Callable[..., Any]:
    """Return a builder of the gradient of the mean square of what a model makes."""

    def built(size: jax_zoo.Size) -> jax_zoo.Case:
        function, args = build(size)

        def loss(params: Tree, *inputs: Tree) -> Tree:
            return jnp.square(function(params, *inputs)).mean()

        return jax.grad(loss), args

    return built


def convnet(size: jax_zoo.Size) -> jax_zoo.Case:
    """Return three convolutions with a bias and a rectifier, a mean and a layer."""
    keys = jax.random.split(jax.random.key(11), 5)
    sides = (3, size.width, size.width, size.width)
    kernels = [
        jax.random.normal(k, (3, 3, a, b)) * (9 * a) ** -0.5
        for k, a, b in zip(keys, sides, sides[1:], strict=False)
    ]
    params = {
        "kernels": kernels,
        "biases": [0.1 * jnp.ones(size.width)] * 3,
        "head": jax.random.normal(keys[3], (size.width, 10)) * size.width**-0.5,
    }

    def run(params: Tree, x: Tree) -> Tree:
        for kernel, bias in zip(params["kernels"], params["biases"], strict=True):
            names = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=names
            )
            x = jax.nn.relu(x + bias)
        return x.mean((1, 2)) @ params["head"]

    return run, (params, jax.random.normal(keys[4], (size.batch, 16, 16, 3)))


BUILDERS: dict[str, Callable[[jax_zoo.Size], jax_zoo.Case]] = {
    **jax_zoo.ZOO,
    "convnet": convnet,
    "mlp, gradient": gradient(jax_zoo.mlp),
    "transformer, gradient": gradient(jax_zoo.transformer),
    "gru, gradient": gradient(jax_zoo.gru),
    "convnet, gradient": gradient(convnet),
}
"""The models, by name."""


def converts(jaxpr: Any) -> int:
    """Return how many float conversions a jaxpr holds, those in bodies once."""
    found = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "convert_element_type":
            kinds = (eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype)
            floats = all(jnp.issubdtype(kind, jnp.floating) for kind in kinds)
            found += floats and kinds[0] != kinds[1]
        for inner in jex.jaxprs_in_params(eqn.params):
            found += converts(getattr(inner, "jaxpr", inner))
    return found


class Crossing(NamedTuple):
    """A conversion that crosses memory.

    Attributes:
        bytes: What it reads and writes in all turns of a loop.
        written: Whether the program says it; otherwise XLA emulates a low kernel.
    """

    bytes: int
    written: bool


def crossing(text: str) -> Iterator[Crossing]:
    """Yield the conversions of floats outside of kernels that compute something.

    Args:
        text: A compiled module as text.
    """
    bodies: dict[str, list[re.Match[str]]] = {}
    rows: list[re.Match[str]] = []
    turns: dict[str, int] = {}
    for line in text.splitlines():
        if head := re.match(r"^(?:ENTRY )?%([\w.\-]+) \(", line):
            rows = bodies.setdefault(head[1], [])
        if found := LINE.match(line):
            rows.append(found)
        if loop := LOOP.search(line):
            turns[loop[1]] = int(loop[2])
    kernels = {
        found[1]
        for rows in bodies.values()
        for row in rows
        if (found := re.search(r"(?:calls|to_apply)=%([\w.\-]+)", row["rest"]))
    }
    for name in bodies.keys() - kernels:
        for row in bodies[name]:
            called = re.search(r"calls=%([\w.\-]+)", row["rest"])
            inner = bodies[called[1]] if called else [row]
            sizes = _converted(inner, bodies[name], row)
            if sizes:
                shape = [int(extent) for extent in row["shape"].split(",") if extent]
                written = any(WRITTEN in step["rest"] for step in inner)
                yield Crossing(prod(shape) * sizes * turns.get(name, 1), written)


def _converted(
    inner: list[re.Match[str]], around: list[re.Match[str]], row: re.Match[str]
) -> int:
    """Return the bytes of an element before and after a mere conversion; else 0."""
    ops = [step["op"] for step in inner]
    if "convert" not in ops or set(ops) - {*MOVES, "convert"}:
        return 0
    types = {other["name"]: other["type"] for other in around}
    source = re.findall(r"%([\w.\-]+)", row["operands"])
    before = types.get(source[0], "") if source else ""
    if before not in SIZES or row["type"] not in SIZES:
        return 0
    return SIZES[before] + SIZES[row["type"]]


def error(found: Tree, wanted: Tree) -> float:
    """Return the L2 error of all leaves together, relative to their norm."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    off = sum(float(np.sum((a - b) ** 2)) for a, b in wide)
    return float((off / sum(float(np.sum(b**2)) for _, b in wide)) ** 0.5)


def reference(function: Callable[..., Any], args: tuple[Any, ...]) -> Tree:
    """Return what ``function`` makes in float64."""

    def wide(leaf: Any) -> Any:
        is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return np.asarray(leaf, np.float64) if is_float else leaf

    with jax.enable_x64(True):
        made = jax.jit(function)(*jax.tree.map(wide, args))
    return jax.tree.map(np.asarray, made)


def measure(name: str, size: jax_zoo.Size) -> dict[str, Any]:
    """Return the figures of one model."""
    function, args = BUILDERS[name](size)
    wanted = reference(function, args)
    full: Any = jax.jit(function).lower(*args).compile()
    row: dict[str, Any] = {
        "float32": {
            "bytes accessed": int(full.cost_analysis()["bytes accessed"]),
            "error": error(full(*args), wanted),
        }
    }
    for target in TARGETS:
        for placement in PLACEMENTS:
            converted = amprewrite.convert(
                function, args=args, placement=placement, target=target
            )
            compiled: Any = jax.jit(converted).lower(*args).compile()
            crossed = list(crossing(compiled.as_text()))
            own = [found.bytes for found in crossed if found.written]
            cost = converted.plan.cost
            row[f"{target}, {placement}"] = {
                "casts in the plan": cost.casts,
                "lowered": len(converted.plan.lowered),
                "converts in the jaxpr": converts(
                    jax.make_jaxpr(converted)(*args).jaxpr
                ),
                "converts through memory": len(own),
                "their bytes": sum(own),
                "bytes of XLA's own converts": sum(c.bytes for c in crossed) - sum(own),
                "bytes accessed": int(compiled.cost_analysis()["bytes accessed"]),
                "error": error(compiled(*args), wanted),
            }
    return row


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(BUILDERS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {}
    for name in options.models:
        rows[name] = measure(name, jax_zoo.TINY)
        print(name, json.dumps(rows[name], indent=1), flush=True)
    found = {
        "what": "policy bf16, size TINY, unit gain; relative L2 error of all outputs "
        "against float64; bytes accessed by XLA's own count, a body of a loop once; "
        "other bytes of all its turns",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""A program of one op with a plan and a sensitivity, and runs that are numbers."""

import numpy as np

from amprewrite.measure.runs import Run
from amprewrite.plan import Decision
from amprewrite.plan.sensitivity import Sensitivity
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[2] input
    y = tanh(%x) -> %v: f32[2]
    return %v
""")

LOWERED = Decision(
    op="y",
    canonical="tanh",
    native="tanh",
    op_class="allow",
    precision="bfloat16",
    rule="tanh",
    why="a test",
    operands=("bfloat16",),
    results=("bfloat16",),
)

KNOWN = Sensitivity({"v": 1e-6}, {}, 4)


def run(**outputs: float | list[float]) -> Run:
    """Return a run with these outputs."""
    return Run({name: np.array(x, float, ndmin=1) for name, x in outputs.items()})

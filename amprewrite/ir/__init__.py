"""The neutral program graph: data, invariants, text. Imports no framework."""

from amprewrite.ir.graph import (
    ABS_SQUARE,
    REGION_BOUNDARIES,
    Op,
    ProgramGraph,
    Value,
    check_graph,
)
from amprewrite.ir.text import parse_graph, print_graph

__all__ = [
    "ABS_SQUARE",
    "REGION_BOUNDARIES",
    "Op",
    "ProgramGraph",
    "Value",
    "check_graph",
    "parse_graph",
    "print_graph",
]

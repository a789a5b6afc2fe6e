"""Gates that weigh the terms of a sum: they stay as they were written."""

import pytest

from amprewrite.ir import Op
from amprewrite.unit_scaling.graph.assign import UnitRule, find_mixtures
from amprewrite.unit_scaling.graph.units import Edge, Unit

GATE = UnitRule(4.8, {-1: 4.7}, "quadrature", gate=1.8, has_mean=True)
PLAIN = UnitRule(1.0, {}, "closed form")
REGIONS = {"sigmoid": GATE, "tanh": PLAIN}


def units_of(text):
    """Return units and rules of lines ``y = mul a b``."""
    units, rules = [], {}
    for line in text.splitlines():
        result, _, name, *reads = line.split()
        region = len(reads) == 1 and name not in ("expand", "matmul")
        edges = tuple(
            Edge(value, result, -1 if region else i) for i, value in enumerate(reads)
        )
        op = Op(result, name, f"aten.{name}", tuple(reads), (result,))
        units.append(Unit(result, (op,), edges, (result,), region))
        rules[result] = REGIONS.get(name, PLAIN)
    return units, rules


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("z = sigmoid a\nc = rsub z\np = mul z h\nq = mul c n\ny = add p q", "z c y"),
        ("z = sigmoid a\nw = expand z\np = mul w h\ny = add p b", "z y"),
        ("z = sigmoid a\nc = rsub z\ny = mul c h", "z c"),  # no sum, but a complement
        ("z = sigmoid a\ny = mul z h", ""),  # a gated unit
        ("z = tanh a\nc = rsub z\np = mul z h\ny = add p c", ""),  # no gate
    ],
)
def test_what_gates_weigh_stays(text, kept):
    assert find_mixtures(*units_of(text)) == set(kept.split())

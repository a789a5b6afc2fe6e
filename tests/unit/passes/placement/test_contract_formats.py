"""The 8-bit formats of a plan, decided on text."""

from dataclasses import replace

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.policy import Matcher, Policy, load_policy
from tests.unit.passes.analysis.test_residual_adds import BLOCK

TEXT = """%x: f32[4,8] input
%h: f64[8,8] input
%w: f32[8,8] parameter
%a: f32[4,1] input
%f: f32[1,8] parameter
one = linear(%x, %w) -> %y: f32[4,8]
  | contracted=8
relu = relu(%y) -> %r: f32[4,8]
wide = matmul(%h, %h) -> %g: f64[8,8]
  | contracted=8
outer = matmul(%a, %f) -> %o: f32[4,8]
  | contracted=1
angle = matmul(%r, %w) -> %t: f32[4,8]
  | contracted=8
sin = sin(%t) -> %s: f32[4,8]
box = linear(%s, %w) -> %u: f32[4,8]
  | contracted=8 fence="a closed box"
return %u, %o, %g
"""


def formats(policy: Policy, text: str = TEXT, overrides=()):
    plan = make_plan(parse_graph(text), Matcher(policy, overrides), Setting())
    return {
        d.op: (d.forward, d.backward, d.scaling)
        for d in plan.decisions
        if d.quantises or d.scaling
    }


E4M3_E5M2 = ("float8_e4m3fn", "float8_e5m2")


def test_what_may_be_low_is_in_8_bits():
    """Not float64, outer products, angles and what must not be touched."""
    assert formats(load_policy("fp8")) == {"one": (*E4M3_E5M2, "current")}
    assert formats(load_policy("simulate e4m3/e5m2")) == {"one": (*E4M3_E5M2, "none")}
    assert formats(load_policy("simulate e4m3/")) == {
        "one": ("float8_e4m3fn", "", "none")
    }
    assert formats(load_policy("bf16")) == {}


def test_rules_leave_contractions_out():
    deny = [{"op_name": "one", "class": "deny", "why": "first layer"}]
    for policy in (load_policy("fp8"), load_policy("simulate e4m3/e5m2")):
        assert formats(policy, overrides=deny) == {}


def test_the_last_contractions_of_residual_branches_are_spared():
    found = formats(load_policy("unit-fp8"), BLOCK)
    assert set(found) == {"q", "k", "scores", "up", "gate", "head"}
    unit = load_policy("unit-fp8")
    every = replace(unit, contract=replace(unit.contract, spare_residual=False))
    assert set(formats(every, BLOCK)) - set(found) == {"out", "down"}


def test_a_simulation_counts_as_a_change():
    matcher = Matcher(load_policy("simulate e4m3/e5m2"))
    plan = make_plan(parse_graph(TEXT), matcher, Setting())
    assert plan.changes
    assert not plan.lowered
    assert "8 bits: 1 contractions, operands in float8_e4m3fn" in plan.summary()
    assert "operands in float8_e4m3fn, gradients in float8_e5m2" in plan.explain("one")
    other = make_plan(
        parse_graph(TEXT), Matcher(load_policy("simulate e4m3/")), Setting()
    )
    assert other.diff(plan) == ("one: backward none -> float8_e5m2",)

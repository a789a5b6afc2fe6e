"""The contractions that torch's kernel for 8 bits takes, decided on text."""

from dataclasses import replace

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan.facts import has_kernel
from amprewrite.policy import Matcher, load_policy
from amprewrite.policy.model import Contract

TEXT = """%x: f32[2,4,8] input
%w: f32[8,8] parameter
one = linear(%x, %w) -> %y: f32[2,4,8]
  | contracted=8 native="aten.linear.default"
two = matmul(%y, %x) -> %z: f32[2,4,4]
  | contracted=8 native="aten.matmul.default"
three = matmul(%y, %w) -> %t: f32[2,4,8]
  | contracted=8 native="dot_general"
return %z, %t
"""
FP8 = Contract("float8_e4m3fn", "float8_e5m2", "current")


@pytest.mark.parametrize(
    ("formats", "full", "taken"),
    [
        (FP8, "float32", ["one"]),
        (FP8, "float64", []),
        (replace(FP8, backward="float8_e4m3fn"), "float32", ["one"]),
        (replace(FP8, backward=""), "float32", []),
        (replace(FP8, forward="float8_e5m2"), "float32", []),
        (replace(FP8, forward="float8_e4m3fnuz"), "float32", []),
    ],
)
def test_products_with_a_matrix_of_torch(
    formats: Contract, full: str, taken: list[str]
) -> None:
    graph = parse_graph(TEXT)
    found = [op.name for op in graph.ops if has_kernel(graph, op, formats, full)]
    assert found == taken


@pytest.mark.parametrize("kernel", ["emulated", "auto", "scaled_mm"])
def test_plans_have_the_kernel_and_say_what_lacks_it(kernel: str) -> None:
    policy = load_policy("fp8")
    policy = replace(policy, contract=replace(policy.contract, kernel=kernel))
    plan = make_plan(parse_graph(TEXT), Matcher(policy), Setting())
    wanted = "" if kernel == "emulated" else kernel
    assert [d.kernel for d in plan.quantised] == [wanted, "", ""]
    said = [w for w in plan.warnings if "2 of 3 contractions are emulated" in w]
    assert len(said) == (kernel == "scaled_mm")
    assert ("kernel" in plan.explain("one")) == (kernel != "emulated")

"""The choice of what is kept: the cheapest, and never a contraction twice."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from amprewrite.ir import ProgramGraph, parse_graph
from amprewrite.ops.repeatable import repeats
from amprewrite.passes.recompute import (
    LONGEST,
    OVERHEAD,
    PRICES,
    Network,
    choose,
    gradient_passes,
    network_of,
    with_recompute,
)
from amprewrite.plan import Plan
from tests.plan_text import plan_of

BLOCK = """%x: f32[64,256] input
%w: f32[256,256] parameter
first = matmul(%x, %w) -> %h: f32[64,256]
gelu = gelu(%h) -> %g: f32[64,256]
draw = dropout(%g) -> %d: f32[64,256]
again = gelu(%d) -> %t: f32[64,256]
last = matmul(%t, %w) -> %y: f32[64,256]
return %y
"""


def made(text: str, *, training: bool = True) -> tuple[ProgramGraph, Plan]:
    """Return a program with its plan."""
    graph = parse_graph(text)
    return graph, with_recompute(graph, plan_of(text, training=training))


def test_activations_run_again_and_draws_are_kept() -> None:
    _, plan = made(BLOCK)
    assert plan.recompute.ops == {"again"}  # nothing reads the other one
    assert {kept.value for kept in plan.recompute.kept if kept.bytes} == {"h", "d"}
    assert plan.recompute.bytes_kept < plan.recompute.bytes_before


def test_inference_has_no_regions() -> None:
    _, plan = made(BLOCK, training=False)
    assert not plan.recompute


def test_tiny_values_are_kept() -> None:
    _, plan = made(BLOCK.replace("256", "2"))
    assert not plan.recompute


def test_a_value_that_many_contractions_read_is_kept() -> None:
    reads = range(LONGEST + 2)
    lines = [f"m{i} = matmul(%g, %w) -> %y{i}: f32[64,256]" for i in reads]
    head = BLOCK[: BLOCK.index("draw")]
    text = "\n".join([*head.splitlines(), *lines, "return %y0\n"])
    assert "gelu" not in made(text)[1].recompute.ops
    few = "\n".join([*head.splitlines(), *lines[:2], "return %y0\n"])
    assert "gelu" in made(few)[1].recompute.ops


def random_program(seed: int, size: int) -> str:
    """Return a program of random ops, each of two earlier values."""
    draw = Random(seed)
    lines = ["%x: f32[64,64] input", "%w: f32[64,64] parameter"]
    names = ["x"]
    for i in range(size):
        op = draw.choice(["matmul", "mul", "add", "exp", "dropout", "tanh", "gelu"])
        a, b = draw.choice(names[-4:]), draw.choice(names[-4:])
        read = f"%{a}, %{b}" if op in ("mul", "add") else f"%{a}"
        read += ", %w" if op == "matmul" else ""
        lines.append(f"op{i} = {op}({read}) -> %v{i}: f32[64,64]")
        names.append(f"v{i}")
    return "\n".join([*lines, f"return %{names[-1]}\n"])


@pytest.mark.parametrize("seed", range(30))
def test_regions_depend_on_their_roots_alone(seed: int) -> None:
    graph, plan = made(random_program(seed, 24))
    kept = {(k.value, k.dtype) for k in plan.recompute.kept}
    for region in plan.recompute.regions:
        have = {value for value, _ in region.roots}
        assert set(region.roots) <= kept
        for name in region.ops:
            op = graph.op_by_name[name]
            assert repeats(op.canonical, op.traits.group)
            assert have.issuperset(op.operands)
            have.update(op.results)


def cheapest(network: Network, price: int) -> int:
    """Return the least price, by trying all sets of makers that run again."""
    makers = [m for m in network.makers if m.repeatable]
    best = None
    for flags in product((False, True), repeat=len(makers)):
        again = [m for m, flag in zip(makers, flags, strict=True) if flag]
        there = {p for m in again for p in m.makes}
        needed = set(network.wanted).union(*(m.reads for m in again))
        kept = sum(network.bytes[p] for p in needed - there) * price
        cost = kept + sum(m.moved + OVERHEAD for m in again)
        best = cost if best is None else min(best, cost)
    assert best is not None
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_the_cheapest(seed: int) -> None:
    text = random_program(seed, 7)
    graph = parse_graph(text)
    plan = plan_of(text, training=True)
    network = network_of(graph, plan, "", gradient_passes(graph))
    for price in PRICES.values():
        wanted, again = choose(network, price=price)
        there = {p for m in again for p in m.makes}
        kept = sum(network.bytes[p] for p in wanted - there) * price
        found = kept + sum(m.moved + OVERHEAD for m in again)
        assert found == cheapest(network, price)


def test_a_compiled_plan_keeps_less_than_one_that_runs_op_by_op() -> None:
    """A compiler fuses what is computed again, so that it may move more bytes."""
    text = """%x: f32[4096,64] input
%w: f32[64,4] parameter
first = matmul(%x, %w) -> %h: f32[4096,4]
mean = mean(%h) -> %m: f32[4096]
last = gelu(%m) -> %y: f32[4096]
return %y
"""
    graph, plan = parse_graph(text), plan_of(text, training=True)
    eager, compiled, unknown = (
        with_recompute(graph, replace(plan, target=target))
        for target in ("eager", "compiled", "")
    )
    assert eager.recompute.bytes_kept > compiled.recompute.bytes_kept
    assert unknown.recompute == compiled.recompute

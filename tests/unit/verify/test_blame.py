"""Blame with programs made of numbers: the error that each op adds is given."""

from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.measure.runs import Call, Run
from amprewrite.plan import Decision, Plan
from amprewrite.plan.sensitivity import Sensitivity
from amprewrite.verify.blame import Effects, Left, Live, blame, extra_bytes, limit
from amprewrite.verify.rows import OpError

LOW = "bfloat16"


def plan_of(names):
    made = (Decision(name, "mul", "mul", "allow", LOW, "", "") for name in names)
    made = tuple(replace(d, operands=(LOW,), results=("float32",)) for d in made)
    return Plan("p", "promote", LOW, "float32", "", made, ())


@dataclass
class Numbers:
    """A chain of ops, each of which adds a given squared error to one output."""

    squares: dict[str, float]
    lost: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    runs: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self):
        names = list(self.squares)
        values = {n: Value(n, "float32", (5,)) for n in ("x", *names)}
        reads = ["x", *names]
        ops = [Op(n, "mul", "mul", (reads[i],), (n,)) for i, n in enumerate(names)]
        self.graph = ProgramGraph(values, tuple(ops), (names[-1],))
        self.plan, self.restorable = plan_of(names), frozenset(names)

    def run(self, restored: Any) -> Run:
        self.runs.append(frozenset(restored))
        left = sum(e for n, e in self.squares.items() if n not in restored)
        made = np.array([1.0 + sqrt(left), 0.0])
        if any(n not in restored for n in self.lost):
            made[1] = np.nan
        return Run({"y": made})

    def ablation(self, *_: Any) -> Any:
        return self

    @property
    def total(self):
        return sqrt(sum(self.squares.values()))


def effects_of(numbers, predicted=None):
    known = None
    if predicted is not None:
        reads = {(numbers.graph.op_by_name[n].operands[0], n) for n in predicted}
        known = Sensitivity({}, {key: predicted[key[1]] for key in reads}, 1)
    reference = Run({"y": np.array([1.0, 0.0])})
    live = Live(numbers, None, None, Call((), {}), reference, known)
    lost = bool(numbers.lost)
    return Effects(live, Left(inf if lost else numbers.total, int(lost)))


def row(name, own=1e-3, **options):
    return OpError(
        name, "mul", "mul", "", "", LOW, own, own, 0, unit=2.0**-8, **options
    )


def test_the_op_whose_restoring_removes_most_is_first_though_predicted_last():
    squares = dict.fromkeys([f"op{i}" for i in range(16)], 1e-8) | {"op9": 1e-4}
    numbers = Numbers(squares)
    predicted = dict.fromkeys(squares, 1e-8) | {"op9": 1e-9}
    found = blame(
        [row(n) for n in squares], numbers.total, 4e-4, effects_of(numbers, predicted)
    )
    assert found[0].op == "op9"
    assert found[0].share == pytest.approx(1e-4 / sum(squares.values()), rel=1e-3)
    assert found.runs == len(set(numbers.runs)) <= limit(16) == 7


def test_where_the_prediction_explains_the_error_no_groups_are_run():
    squares = {f"op{i}": (i + 1) * 1e-6 for i in range(8)}
    numbers = Numbers(squares)
    rows = [row(n) for n in squares]
    found = blame(rows, numbers.total, numbers.total, effects_of(numbers, squares), 4)
    assert [entry.op for entry in found] == ["op7", "op6", "op5", "op4"]
    assert max(map(len, numbers.runs)) == 1
    assert not any(entry.fault for entry in found)


def test_an_error_far_beyond_roundoff_is_a_fault():
    squares = {"a": 1e-6, "b": 1e-6, "c": 1e-4}
    numbers = Numbers(squares)
    rows = [row("a"), row("b"), row("c", own=1e-2)]
    effects = effects_of(numbers, dict.fromkeys(squares, 1e-6))
    found = blame(rows, numbers.total, 1.7e-3, effects)
    assert "2.6 times the roundoff" in found[0].fault
    assert [bool(entry.fault) for entry in found] == [True, False, False]


def test_a_fault_without_an_effect_is_named_before_roundings():
    squares = {"a": 1e-6, "b": 0.0}
    rows = [row("a"), row("b", kernel=0.5, explained=0.01)]
    found = blame(rows, 1e-3, 1e-3, effects_of(Numbers(squares), squares))
    assert found[0].op == "b"
    assert "differs from the original's op by 0.5" in found[0].fault


def test_values_that_overflow_together_are_restored_together():
    squares = dict.fromkeys("abcd", 1e-6)
    numbers = Numbers(squares, lost={"b": 1, "c": 1})
    beyond = {"headroom": -1.5, "dtype": "float16", "largest": 2e5}
    rows = [row("a"), row("b", own=inf, **beyond), row("c", own=inf), row("d")]
    found = blame(rows, inf, None, effects_of(numbers, {}))
    assert [entry.op for entry in found[:2]] == ["b", "c"]
    assert [entry.share for entry in found[:2]] == [0.5, 0.5]
    assert "its largest is 2e+05, -1.5 octaves left in float16" in found[0].fault
    assert found.notes[0].startswith("2 ops make values that are not finite; b is")


def test_prices_are_of_what_is_low():
    numbers = Numbers({"a": 1e-6, "b": 1e-6}, seconds={"a": -1.0})
    assert extra_bytes(numbers.plan, numbers.graph, "a") == 2 * 5
    assert extra_bytes(numbers.plan, numbers.graph, "a cast") == 0
    found = blame([row("a"), row("b")], 1e-3, None, effects_of(numbers, {}))
    assert {entry.op: entry.seconds for entry in found} == {"a": -1.0, "b": None}


def test_without_the_models_shares_are_those_of_the_rows():
    rows = [row("a", share=0.25), row("b", share=0.75)]
    found = blame(rows, 2e-3, 1e-3, None, 1)
    assert (found[0].op, found[0].share, found.measured) == ("b", 0.75 / 4, False)
    assert "no op was restored" in str(found)
    assert found.to_json()["entries"][0]["error"] is None

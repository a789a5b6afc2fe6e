"""The check that a rewritten program reads what was written in place."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import GraphError, PlanMismatchError
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.rewrite.in_place_writes import (
    check_writes,
    contents,
)
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.frameworks.torch_fx.rewrite.write import rewrite
from amprewrite.plan import OUTPUT, Plan
from tests.torch_programs import Program

aten = torch.ops.aten


def reading_of(function: Any) -> Any:
    model = Program(function, a=nn.Linear(8, 8)).eval()
    return read(export_model(model, (torch.randn(4, 8),), {}).module)


def writes(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0].add_(x[0])
    return h, h[1]


def node_of(reading: Any, name: str) -> Any:
    (node,) = [n for n in reading.module.graph.nodes if n.name == name]
    return node


def cast_before(value: Any, reader: Any) -> None:
    """Let ``reader`` read a copy of ``value`` in another dtype."""
    with reader.graph.inserting_before(reader):
        copy = reader.graph.call_function(aten.to.dtype, (value, torch.float64))
    copy.meta.update(val=value.meta["val"].double(), amprewrite="cast")
    reader.replace_input_with(value, copy)


def test_a_program_that_writes_nothing_is_not_walked() -> None:
    reading = reading_of(lambda m, x: m.a(x) + 1)
    assert contents(reading) is None
    check_writes(reading, None)


def test_an_unchanged_program_reads_the_same() -> None:
    reading = reading_of(writes)
    check_writes(reading, contents(reading))


def test_a_write_to_a_copy_is_found() -> None:
    reading = reading_of(writes)
    before = contents(reading)
    cast_before(node_of(reading, "linear"), node_of(reading, "select"))
    with pytest.raises(GraphError, match=r"a cast parts .* from a write in place"):
        check_writes(reading, before)


def test_a_copy_made_before_a_write_is_found_in_an_output() -> None:
    reading = reading_of(writes)
    before = contents(reading)
    linear = node_of(reading, "linear")
    output = next(iter(reversed(reading.module.graph.nodes)))
    with linear.graph.inserting_after(linear):
        copy = linear.graph.call_function(aten.to.dtype, (linear, torch.float64))
    copy.meta.update(val=linear.meta["val"].double(), amprewrite="cast")
    output.replace_input_with(linear, copy)
    with pytest.raises(GraphError, match="parts output 0 from"):
        check_writes(reading, before)


def test_a_copy_made_after_a_write_is_right() -> None:
    reading = reading_of(writes)
    before = contents(reading)
    output = next(iter(reversed(reading.module.graph.nodes)))
    cast_before(node_of(reading, "linear"), output)
    check_writes(reading, before)


def test_what_is_read_after_a_lost_write_to_an_input_is_found() -> None:
    def forward(m: Any, x: Any) -> Any:
        x[0].add_(1.0)
        return m.a(x[1:])

    reading = reading_of(forward)
    before = contents(reading)
    (placeholder,) = reading.module.graph.find_nodes(op="placeholder")
    cast_before(placeholder, node_of(reading, "select"))
    with pytest.raises(GraphError, match="parts slice_1"):
        check_writes(reading, before)


def test_a_lost_write_to_an_input_is_found() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        x[0].add_(1.0)
        return h

    reading = reading_of(forward)
    before = contents(reading)
    (placeholder,) = reading.module.graph.find_nodes(op="placeholder")
    cast_before(placeholder, node_of(reading, "select"))
    with pytest.raises(GraphError, match="after the call from a write"):
        check_writes(reading, before)


def test_a_plan_edited_so_that_a_write_is_lost_is_refused() -> None:
    model = Program(writes, a=nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    plan = amprewrite.inspect(model, args=(x,))

    def edited(plan: Plan) -> Plan:
        casts = (
            replace(c, uses=tuple(u for u in c.uses if u[0] != OUTPUT))
            for c in plan.casts
        )
        return replace(plan, casts=tuple(c for c in casts if c.uses))

    with pytest.raises(PlanMismatchError, match="writes to it"):
        amprewrite.convert(model, args=(x,), plan=edited(plan))
    with pytest.raises(GraphError, match="keep the ops that write"):
        rewrite(reading_of(writes), edited(plan))


def test_a_body_sees_what_is_written_in_it() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        with torch.no_grad():
            h[0].zero_()
        return h

    reading = reading_of(forward)
    assert reading.bodies
    before = contents(reading)
    assert before is not None
    check_writes(reading, before)
    (body,) = reading.bodies
    cast_before(node_of(reading, "linear"), body)
    with pytest.raises(GraphError):
        check_writes(reading, before)

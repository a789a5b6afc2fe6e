"""Lines of a fingerprint, read back."""

import pytest

from amprewrite.errors import PlanMismatchError
from amprewrite.plan.validation.fingerprint import (
    EndLine,
    LineValue,
    OpLine,
    read_programs,
)
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
%n: i32[] buffer
linear = linear(%x, %w) -> %h: f32[4,8]
scan = mul(%h, %h) -> %p: f32[4,8]; %n2: i32[]
  | region="scan"
none = rand() -> %r: f32[]
return %p, %n2 into %n
"""


def test_the_program_of_a_plan_is_read_back() -> None:
    plan = plan_of(TEXT)
    (program,) = read_programs(plan.program)
    assert [str(line) for line in (*program.ops, program.end)] == list(plan.program)
    linear, scan, none = program.ops
    assert linear.operands[1] == LineValue("w", "float32", 2, "parameter")
    assert (scan.region, [value.rank for value in scan.results]) == ("scan", [2, 0])
    assert (none.native, none.operands) == ("rand", ())
    assert program.end.states == ((1, "n"),)


@pytest.mark.parametrize(
    "line",
    [
        OpLine("a", "aten.x(y)", (), (), "while/body in it"),
        OpLine(
            "a.in0", "scan", (LineValue("p['k, v']: (1)", "float32", 1, "input"),), ()
        ),
        OpLine("return", "f", (), (LineValue("x in y", "bfloat16", 0),)),
        OpLine("a = b", "", (), ()),
    ],
    ids=str,
)
def test_odd_names_are_read_back(line: OpLine) -> None:
    end = EndLine(
        (LineValue("a; b", "int8", 0), LineValue("c", "bool", 3)), ((0, "x; y"),)
    )
    (program,) = read_programs([str(line), str(end)])
    assert str(program.ops[0]) == str(line)
    assert (program.ops[0].operands, program.ops[0].results) == (
        line.operands,
        line.results,
    )
    assert program.end == end


def test_several_graphs_are_several_programs() -> None:
    lines = plan_of(TEXT).program
    assert len(read_programs((*lines, *lines))) == 2
    assert read_programs(()) == ()


def test_other_lines_are_refused() -> None:
    values = ", ".join(f"%x{i}: float32 2d" for i in range(2000))
    for line in ("x", "", "return", f"a = f({values}", f"return {values}, %y: float32"):
        with pytest.raises(PlanMismatchError, match="line 1 of the plan's program is"):
            read_programs([line])
    with pytest.raises(PlanMismatchError, match="ends with 'a = f"):
        read_programs(["a = f() -> "])

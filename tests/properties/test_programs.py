"""What holds for the conversion of every program, on random small ones."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import Phase, given, reject, settings

import amprewrite
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from tests.properties.programs import Step, build, inputs, programs
from tests.torch_programs import floats, in_full, relative_error, under_autocast

pytestmark = pytest.mark.slow
few = settings(max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate))

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative."""


def converted(steps: tuple[Step, ...], policy: str) -> tuple[Any, Any]:
    model = build(steps)
    return model, amprewrite.convert(model, policy, args=inputs())


def leaves(output: Any) -> list[Any]:
    return pytree.tree_leaves(output)


@few
@given(programs())
def test_the_policy_off_gives_the_very_same_bits(steps: tuple[Step, ...]) -> None:
    model, program = converted(steps, "off")
    ours, theirs = in_full(program, *inputs()), in_full(model, *inputs())
    for one, two in zip(floats(ours), floats(theirs), strict=True):
        assert torch.equal(one, two)


@few
@given(programs())
def test_outputs_keep_their_structure_and_dtypes_and_are_close(
    steps: tuple[Step, ...],
) -> None:
    """No worse than torch.autocast, but for a rounding for every op."""
    model, program = converted(steps, "bf16")
    ours, full = in_full(program, *inputs()), in_full(model, *inputs())
    assert list(ours) == list(full)
    assert [type(x) for x in leaves(ours)] == [type(x) for x in leaves(full)]
    assert [x.dtype for x in floats(ours)] == [x.dtype for x in floats(full)]
    assert program.plan.lowered
    try:
        theirs = under_autocast(model, *inputs())
    except RuntimeError:  # CPUs without bfloat16 have no kernel for LSTMs
        reject()
    bound = relative_error(theirs, full)
    assert relative_error(ours, full) <= 1.5 * bound + len(steps) * ROUNDING


@pytest.mark.filterwarnings("ignore:rewritten 0 of")  # which is what is to be shown
@few
@given(programs())
def test_converting_twice_is_converting_once(steps: tuple[Step, ...]) -> None:
    _, once = converted(steps, "bf16")
    exported = torch.export.export(once, inputs(), strict=False)
    twice = amprewrite.convert(exported, "bf16", args=inputs())
    assert twice.plan.runtime_casts == ()
    ours, again = in_full(once, *inputs()), in_full(twice, *inputs())
    for one, two in zip(floats(ours), floats(again), strict=True):
        assert torch.equal(one, two)


@few
@given(programs())
def test_plans_of_another_capture_are_the_same(steps: tuple[Step, ...]) -> None:
    _, program = converted(steps, "bf16")
    _, again = converted(steps, "bf16")
    assert program.plan == again.plan
    applied = amprewrite.convert(build(steps), args=inputs(), plan=program.plan)
    one, two = in_full(program, *inputs()), in_full(applied, *inputs())
    assert all(torch.equal(a, b) for a, b in zip(floats(one), floats(two), strict=True))

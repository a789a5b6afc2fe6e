"""The tensors of a converted module: replaced, loaded, stored and written to."""

import copy
import io
import operator
import pickle
from multiprocessing import get_context
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning, UnsupportedError
from tests.torch_programs import Program, in_full, relative_error

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative; a few layers stay under two of them."""


def normalised(m: Any, x: Any) -> Any:
    return m.n(m.a(x)) + m.a.weight.exp().mean()


def a_model() -> Any:
    return Program(normalised, a=nn.Linear(16, 16), n=nn.BatchNorm1d(16))


def other_than(model: Any) -> Any:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1.5)
        other.n.running_mean.add_(1)
    return other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_assigned_tensors_are_taken_in_the_dtypes_of_the_program(
    dtype: Any, *, training: bool
) -> None:
    model, x = a_model().train(training), torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,))
    dtypes = {name: held.dtype for name, held in program.state_dict().items()}
    other = other_than(model)
    state = {
        name: held.to(dtype) if held.is_floating_point() else held.clone()
        for name, held in other.state_dict().items()
    }
    program.load_state_dict(state, assign=True)
    assert {n: held.dtype for n, held in program.state_dict().items()} == dtypes
    assert relative_error(program(x), other(x)) < 2 * ROUNDING


@pytest.mark.parametrize("captured", ["before", "after"])
def test_assigned_tensors_are_those_of_the_other_mode_too(captured: str) -> None:
    model, x = a_model().train(), torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,))
    if captured == "before":
        program.eval()(x)
        program.train()
    other = other_than(model)
    program.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    expected = in_full(other.eval(), x)
    assert relative_error(program.eval()(x), expected) < 2 * ROUNDING
    program.a.weight = nn.Parameter(torch.eye(16))
    other.a.weight = program.a.weight
    expected = in_full(other, x)
    assert relative_error(program(x), expected) < 2 * ROUNDING
    assert relative_error(copy.deepcopy(program)(x), expected) < 2 * ROUNDING


def again(program: Any) -> Any:
    """Save and load, as users do."""
    file = io.BytesIO()
    torch.save(program, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("training", [False, True])
def test_a_converted_module_is_saved_and_loaded(*, training: bool) -> None:
    model, x = a_model().train(training), torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,))
    loaded = again(program)
    assert loaded.plan == program.plan
    assert torch.equal(loaded(x), program(x))
    names = [node.name for node in loaded.rewritten.graph.nodes]
    assert names == [node.name for node in program.rewritten.graph.nodes]
    for one in (loaded, program):
        with torch.no_grad():
            one.a.weight.mul_(2)
    assert torch.equal(loaded(x), program(x))
    assert torch.equal(again(copy.deepcopy(loaded))(x), program(x))


def test_the_programs_of_both_modes_are_saved_once_they_are_there() -> None:
    model, x = a_model().train(), torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,))
    with pytest.raises(UnsupportedError, match="programs for train mode alone; call"):
        again(program).eval()
    with pytest.raises(UnsupportedError, match="programs for train mode alone; call"):
        again(program.eval())(x)
    program(x)
    loaded = again(program)
    loaded.train()(x).sum().backward()
    with torch.no_grad():
        loaded.a.weight.mul_(2)
        program.a.weight.mul_(2)
        program.n.running_mean.copy_(loaded.n.running_mean)
        program.n.running_var.copy_(loaded.n.running_var)
    assert torch.equal(loaded.eval()(x), program(x))


def nested(m: Any, x: Any, *, more: Any) -> Any:
    return {"out": (m.a(x), None, [more["k"] + 1])}


def branch(m: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.tanh, (m.a(x),))


def doubled(_: Any, x: Any) -> Any:
    return torch.ops.ampstored.twice(x)


def test_structures_that_go_in_and_out_are_saved() -> None:
    model, x = Program(nested, a=nn.Linear(16, 16)).eval(), torch.randn(4, 16)
    kwargs = {"more": {"k": x}}
    program = amprewrite.convert(model, args=(x,), kwargs=kwargs)
    found, expected = again(program)(x, **kwargs), program(x, **kwargs)
    assert isinstance(found["out"], tuple)
    assert relative_error(found, expected) == 0


def test_what_cannot_be_saved_says_what_can() -> None:
    lazy = amprewrite.convert(a_model().eval())
    with pytest.raises(UnsupportedError, match="save the model and convert it again"):
        again(lazy)


@pytest.mark.slow
def test_a_spawned_process_runs_a_converted_model() -> None:
    x = torch.randn(4, 16)
    made: Any = amprewrite.convert(nn.Sequential(nn.Linear(16, 8)).eval(), args=(x,))
    made.requires_grad_(requires_grad=False)  # gradients do not leave a process
    with get_context("spawn").Pool(1) as pool:
        found = pool.apply(operator.call, (made, x))
        plan = pool.apply(operator.attrgetter("plan"), (made,))
    assert torch.equal(found, made(x))
    assert plan == made.plan


def test_a_program_with_branches_is_saved() -> None:
    x = torch.randn(4, 16)
    made = amprewrite.convert(Program(branch, a=nn.Linear(16, 16)).eval(), args=(x,))
    loaded = again(made)
    assert torch.equal(loaded(x), made(x))
    assert torch.equal(loaded(-x), made(-x))


def test_a_program_whose_operators_are_not_there_is_not_loaded() -> None:
    x = torch.randn(4, 16)
    with torch.library._scoped_library("ampstored", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        model = Program(doubled).eval()
        with pytest.warns(AmpWarning, match="rewritten 0 of"):
            stored = pickle.dumps(amprewrite.convert(model, args=(x,)))
        assert torch.equal(pickle.loads(stored)(x), x * 2)
    with pytest.raises(UnsupportedError, match=r"calls ampforgot\.twice\.default"):
        pickle.loads(stored.replace(b"ampstored", b"ampforgot"))

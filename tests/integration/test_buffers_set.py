"""Buffers that a forward sets: another tensor, a new one, or none, at each call."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import amprewrite
from tests.torch_programs import Program

WIDTH = 4

Forward = Callable[[Any, Any], Any]


def statistics(x: Any) -> Any:
    return x.detach().mean(0)


def set_as_attribute(m: Any, x: Any) -> Any:
    y = m.layer(x)
    m.mean = m.mean * 0.5 + statistics(x)
    return y * m.mean


def registered(m: Any, x: Any) -> Any:
    m.register_buffer("mean", m.mean * 0.5 + statistics(x))
    return m.layer(x) * m.mean


def set_in_the_dict(m: Any, x: Any) -> Any:
    m._buffers["mean"] = m.mean * 0.5 + statistics(x)
    return m.layer(x) * m.mean


def new(m: Any, x: Any) -> Any:
    before = m._buffers.get("late")
    m.register_buffer("late", statistics(x) + (0.0 if before is None else before))
    return m.layer(x) * m.late


def none_before(m: Any, x: Any) -> Any:
    m.absent = statistics(x) + (0.0 if m.absent is None else m.absent)
    return m.layer(x) * m.absent


def beside_none(m: Any, x: Any) -> Any:
    m.last = m.last * 0.5 + statistics(x)  # behind a buffer that is None
    return m.layer(x) * m.last


def none_afterwards(m: Any, x: Any) -> Any:
    y = m.layer(x)
    if m.mean is not None:
        y = y * m.mean
        m.mean = None
    return y


def other_dtype(m: Any, x: Any) -> Any:
    m.mean = m.mean.double() * 0.5
    return m.layer(x) * m.mean.float()


def other_extents(m: Any, x: Any) -> Any:
    m.mean = torch.cat([m.mean, statistics(x)])
    return m.layer(x) * m.mean.sum()


def swapped(m: Any, x: Any) -> Any:
    m.mean, m.last = m.last, m.mean
    return m.layer(x) * m.mean


FORWARDS: tuple[Forward, ...] = (
    *(set_as_attribute, registered, set_in_the_dict, new, none_before, beside_none),
    *(none_afterwards, other_dtype, other_extents, swapped),
)


def part(run: Forward) -> Any:
    made = Program(run, layer=torch.nn.Linear(WIDTH, WIDTH), mean=torch.rand(WIDTH))
    if run is not set_as_attribute:
        made.register_buffer("absent", None)
    made.register_buffer("last", torch.rand(WIDTH))
    return made


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazily"])
@pytest.mark.parametrize("nested", [False, True], ids=["itself", "in a part"])
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_each_call_sets_them_as_plain_code_does(
    forward: Forward, *, nested: bool, lazy: bool
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(part(forward)) if nested else part(forward)
    model.eval()
    plain, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    x = torch.rand(3, WIDTH)
    args = None if lazy else (x.clone(),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = amprewrite.convert(model, "off", args=args)
        for _ in range(3):
            given = x.clone()
            assert torch.equal(converted(given), plain(x))
            assert torch.equal(given, x)
        left = amprewrite.original(converted).state_dict()
    for state, expected in ((left, plain.state_dict()), (model.state_dict(), before)):
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(state[name], value)
            assert state[name].dtype == value.dtype

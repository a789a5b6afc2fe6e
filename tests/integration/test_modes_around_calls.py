"""Calls under modes that see ops: counters, loggers and debuggers change nothing."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import amprewrite


class SeesOps(TorchDispatchMode):
    """Mode that counts ops, and leaves them as they are."""

    def __init__(self) -> None:
        above: Any = super()
        above.__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    """Mode that leaves functions of torch as they are."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def counter() -> Any:
    return FlopCounterMode(display=False)


class Branches(nn.Module):
    """It has a break between two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.inner(x) if x.sum() < 1e9 else x


X = torch.linspace(-1, 1, 256).view(16, 16)
MODELS = {"one graph": lambda: nn.Linear(16, 16), "breaks": Branches}
MODES = [counter, SeesOps, SeesFunctions]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_a_call_under_a_mode_is_as_any_other(
    name: str, mode: Callable[[], Any], *, training: bool, grad: bool, first: bool
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().train(training)
    converted: Any = amprewrite.convert(model)
    wanted = amprewrite.convert(model)
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = wanted(X)
        if not first:
            assert torch.equal(converted(X), exact)
        with mode():
            under = converted(X)
        after = converted(X)
    assert not torch.equal(exact, model(X))  # it is low
    assert torch.equal(under, exact)
    assert torch.equal(after, exact)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_the_flops_of_a_call_are_counted_once(
    name: str, *, given: bool, first: bool
) -> None:
    model = MODELS[name]()
    converted: Any = amprewrite.convert(model, args=(X,) if given else None)
    if not first:
        converted(X)
    for run in (converted, model):
        with counter() as flops:
            run(X)
        assert flops.get_total_flops() == 2 * 16**3


def test_a_mode_sees_the_ops_that_run() -> None:
    converted: Any = amprewrite.convert(nn.Linear(16, 16))
    counts = list[int]()
    for _ in range(3):
        with SeesOps() as mode:
            converted(X)
        counts.append(mode.count)
    assert counts[0] == counts[1] == counts[2] > 0


def test_hooks_of_the_user_for_all_modules_still_run() -> None:
    calls = list[Any]()
    converted: Any = amprewrite.convert(Branches())
    modules: Any = nn.modules.module
    hook = modules.register_module_forward_hook(lambda part, *_: calls.append(part))
    with hook, counter() as flops:
        converted(X)
    assert calls
    assert flops.get_total_flops() == 2 * 16**3

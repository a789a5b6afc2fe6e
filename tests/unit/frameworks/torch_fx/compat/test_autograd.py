"""Custom autograd functions and hooks on saved tensors are noted, however applied."""

from collections.abc import Callable
from functools import partial, wraps
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from amprewrite.frameworks.torch_fx.compat import watchers


class Twice(Function):
    """The older form."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return grads[0] * 3


class Thrice(Function):
    """The form that transforms of functions take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return grads[0] * 5


class Once(Twice):
    """A function that inherits a pass, and whose other one has no derivative."""

    backward: Any = staticmethod(once_differentiable(Twice.backward))


twice: Any = Twice.apply
thrice: Any = Thrice.apply
once: Any = Once.apply
"""Bound before any watcher, as models do."""


@wraps(twice)
def decorated(x: Any) -> Any:
    return twice(x)


def without_gradients(x: Any) -> Any:
    with torch.no_grad():
        return twice(x)


def ones() -> Any:
    return torch.ones(2, requires_grad=True)


APPLIED: dict[str, tuple[Callable[[Any], Any], type]] = {
    "by its class": (lambda x: Twice.apply(x * 1), Twice),
    "bound before": (twice, Twice),
    "decorated": (decorated, Twice),
    "partial": (partial(twice), Twice),
    "with a context apart": (thrice, Thrice),
    "derived, with one derivative": (once, Once),
    "without a gradient": (lambda x: twice(x.detach()), Twice),
    "in a region without gradients": (without_gradients, Twice),
    "under vmap": (torch.func.vmap(thrice), Thrice),
    "under grad": (torch.func.grad(lambda x: thrice(x).sum()), Thrice),
    "in a checkpoint": (lambda x: checkpoint(twice, x, use_reentrant=True), Twice),
}


@pytest.mark.parametrize("name", APPLIED)
def test_custom_functions_are_noted(name: str) -> None:
    run, kind = APPLIED[name]
    noted, expected = list[type](), run(ones())
    with watchers.noting_functions(noted.append):
        assert torch.equal(run(ones()), expected)
    count = len(noted)
    assert kind in noted
    run(ones())
    assert len(noted) == count


def test_gradients_are_those_of_the_function_while_it_is_noted() -> None:
    x, noted = ones(), list[type]()
    with watchers.noting_functions(noted.append):
        twice(x).sum().backward()
    assert noted == [Twice]
    assert x.grad.tolist() == [3, 3]


def test_reading_other_attributes_is_not_noted() -> None:
    noted = list[type]()
    with watchers.noting_functions(noted.append):
        assert Twice.__name__ == "Twice"
        assert callable(Twice.backward)
        assert noted == []
        with watchers.noting_functions(noted.append):
            twice(ones())
        assert noted == [Twice, Twice]  # each watcher hears it
    assert "__getattribute__" not in vars(type(Function))


def test_other_threads_are_not_noted() -> None:
    noted = list[type]()

    def elsewhere() -> None:
        twice(ones())
        checkpoint(torch.exp, ones(), use_reentrant=False)

    with (
        watchers.noting_functions(noted.append),
        watchers.noting_saved_tensors(noted.append),
    ):
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert noted == []


def selective() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.exp.default])


STEPS = [torch.exp, torch.sin]

CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: checkpoint(torch.exp, x, use_reentrant=False),
    "in sequence": lambda x: checkpoint_sequential(STEPS, 2, x, use_reentrant=False),
    "selective": lambda x: checkpoint(
        torch.exp, x, use_reentrant=False, context_fn=selective
    ),
    "reentrant": lambda x: checkpoint(torch.exp, x, use_reentrant=True),
    "reentrant, in sequence": lambda x: checkpoint_sequential(
        STEPS, 2, x, use_reentrant=True
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_noted(name: str) -> None:
    noted = list[type]()
    with (
        watchers.noting_functions(noted.append),
        watchers.noting_saved_tensors(noted.append),
    ):
        CHECKPOINTS[name](ones()).sum().backward()
    count = len(noted)
    assert any(map(watchers.is_checkpoint, noted))
    CHECKPOINTS[name](ones())
    assert len(noted) == count


def test_hooks_on_saved_tensors_are_noted_and_are_no_checkpoint() -> None:
    noted = list[type]()
    with (
        watchers.noting_saved_tensors(noted.append),
        torch.autograd.graph.save_on_cpu(),
    ):
        ones().exp()
    assert noted == [torch.autograd.graph.save_on_cpu]
    assert not watchers.is_checkpoint(noted[0])

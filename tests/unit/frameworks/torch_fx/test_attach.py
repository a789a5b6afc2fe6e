"""Calls of a torch module are shown before they run, and not once detached."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.watching import attach


class Every:
    """Watcher of each call that keeps its arguments."""

    def __init__(self):
        self.seen, self.told = [], 0

    def due(self):
        return len(self.seen) + 1

    def compare(self, number, args, kwargs):
        model(*args)  # a call within the comparison is not shown
        assert not kwargs
        self.seen.append((number, args[0], torch.is_grad_enabled()))
        return self.tell

    def tell(self):
        self.told += 1


model = nn.Linear(2, 2)


def test_calls_are_shown_with_copies_and_without_modes_of_the_caller():
    watcher, x = Every(), torch.ones(1, 2)
    attached = attach(model, watcher)
    with torch.no_grad():
        attached.call(x)
    ((number, copy, enabled),) = watcher.seen
    assert (number, enabled, watcher.told) == (1, True, 1)
    assert torch.equal(copy, x)
    assert copy is not x
    torch.func.vmap(model)(x)  # a transformation traces it: not shown
    attached.detach()
    model(x)
    assert len(watcher.seen) == 1

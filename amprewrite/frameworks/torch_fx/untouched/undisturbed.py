"""The one context for runs that are not the user's own.

A run before a capture, a capture, a trial, a measurement: all of the model is put back
when it ends, whether it completes, fails or is interrupted.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import tensor_internals, threads
from amprewrite.frameworks.torch_fx.untouched.attributes import Attributes
from amprewrite.frameworks.torch_fx.untouched.first_writes import FirstWrites
from amprewrite.frameworks.torch_fx.untouched.surroundings import Surroundings
from amprewrite.frameworks.torch_fx.untouched.tensor_states import (
    TensorState,
    has_state,
)


class Untouched:
    """Models as they are at some time, to be put back.

    Recorded are their attributes, with what containers and objects in them hold, their
    hooks and classes, the memory and the gradients of their tensors, the variables
    around them, and the states of random generators. Values of tensors are copied only
    before the first write.

    Attributes:
        attributes: The attributes.
        writes: The memory that was written to.
        surroundings: The variables around the models.
    """

    def __init__(self, *models: nn.Module, around: Surroundings | None = None) -> None:
        """Record the state.

        Args:
            models: The models.
            around: The variables around the models, if they are recorded already.
        """
        self.writes, self.surroundings = FirstWrites(), around or Surroundings(models)
        with tensor_internals.without_overrides():  # each would see each attribute
            self.attributes = Attributes(*models)
            tensors = filter(has_state, self.attributes.tensors)
            self._tensors = [TensorState(tensor) for tensor in tensors]
        tensors = (t for m in models for t in (*m.parameters(), *m.buffers()))
        devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
        self._random = torch.get_rng_state()
        self._random_of = {d: torch.cuda.get_rng_state(d) for d in devices}

    def written(self) -> list[str]:
        """Return the names of variables around the models, and of tensors, written to.

        Parameters and buffers are left out.
        """
        around = [*self.surroundings.written()]
        if not self.writes.written:
            return around
        names = self.attributes.written(self.writes)
        return around + (names or ["a tensor outside of the model"])

    def restore(self, *, hooks: bool = True, stored: bool = True) -> None:
        """Put all back.

        Args:
            hooks: As :meth:`Attributes.restore` takes it.
            stored: As :meth:`Surroundings.restore` takes it.
        """
        with _uninterrupted(), tensor_internals.without_overrides():
            tensors = self._tensors if self.writes.written else ()
            written = [s for s in tensors if self.writes.has_written(s.tensor)]
            self.writes.put_back()
            for state in self._tensors:
                state.restore()
            for state in written:
                state.forget_writes()
            self.attributes.restore(hooks=hooks)
            self.surroundings.restore(stored=stored)
            torch.set_rng_state(self._random)
            for device, state in self._random_of.items():
                torch.cuda.set_rng_state(state, device)


@contextmanager
def undisturbed(
    *models: nn.Module,
    hooks: bool = True,
    watched: bool = True,
    around: Surroundings | None = None,
) -> Generator[Untouched]:
    """Put models, and the states of random generators, back at the end.

    Args:
        models: The models.
        hooks: Whether hooks that a forward registers are removed, with the flags that
            say so; otherwise both stay.
        watched: Whether ops are seen throughout; otherwise where the caller asks for
            it, by :meth:`FirstWrites.watching`, and only there writes are seen.
        around: The variables around the models, if they are recorded already. The
            caller gives tensors without values in them their values, or removes them.
    """
    before = Untouched(*models, around=around)
    watching = before.writes.watching() if watched else nullcontext()
    with threads.capturing():
        try:
            with watching:
                yield before
        finally:
            before.restore(hooks=hooks, stored=around is None)


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Let an interrupt by the user wait until the end of the context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler: Any = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield
        return
    waiting: list[tuple[int, Any]] = []

    def wait(number: int, frame: Any) -> None:
        waiting.append((number, frame))

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if waiting:
        handler(*waiting[0])

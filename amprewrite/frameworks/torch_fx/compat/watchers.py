"""Programs of two lines that try, once in a process, whether captures hear of features.

What a capture replaces in torch may be gone in a later release, which would be an
error; or it may be there and not be called any more, which nobody would notice. Such a
feature is named in a warning, with what happens instead.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils import checkpoint

from amprewrite.errors import warn
from amprewrite.frameworks.torch_fx.compat import settings, threads, tracing
from amprewrite.frameworks.torch_fx.compat.threads import replaced


@dataclass(frozen=True)
class Trial:
    """A program that has a feature.

    Attributes:
        feature: Name of the feature, in the plural.
        is_heard: Runs the program; returns whether a capture would hear of it.
        instead: What happens to models with the feature where it is not heard of.
        trained: Whether a model in training is captured by dynamo then.
    """

    feature: str
    is_heard: Callable[[], bool]
    instead: str
    trained: bool = False


_BY_DYNAMO = (
    "models in training are captured by torch.compile (dynamo), which keeps them, and "
    "plan=, tolerance= and policy='promote' are refused for these"
)


class _Itself(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient."""
        del ctx
        return gradients


_itself: Any = _Itself
_applied = _itself.apply  # as models bind it


def _zeros(*shape: int) -> torch.Tensor:
    """Return zeros on the CPU, also with another default device."""
    return torch.zeros(shape, device="cpu")


def _hears_functions() -> bool:
    heard = list[type]()
    with noting_functions(heard.append):
        _applied(_zeros(1).requires_grad_())
    return _Itself in heard


def _hears_checkpoints(*, reentrant: bool) -> bool:
    untyped: Any = checkpoint
    noting = noting_functions if reentrant else noting_saved_tensors
    heard = list[type]()
    with noting(heard.append):
        untyped.checkpoint(
            torch.sin,
            _zeros(1).requires_grad_(),
            use_reentrant=reentrant,
            preserve_rng_state=False,
        )
    return any(is_checkpoint(kind) for kind in heard)


def _hears_own_casts() -> bool:
    """Return whether a reader of a tensor is told from a reader of its no-op cast."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32).sin() + x.cos()

    with settings.distinct_casts():
        graph = tracing.trace_pre_dispatch(program, (_zeros(1),)).graph
    (given,) = graph.find_nodes(op="placeholder")
    (cosine,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)
    return cosine.args[0] is given


def _hears_attention() -> bool:
    """Return whether the one op of an attention layer is replaced by its steps."""
    layer = nn.MultiheadAttention(2, 2, batch_first=True, device="cpu").eval()
    x = _zeros(1, 1, 2)
    with settings.slow_attention_path():
        return "_native_multi_head" not in str(tracing.dispatched(layer, (x, x, x), {}))


def _hears_inference() -> bool:
    with settings.inference_without_gradients(), torch.inference_mode():
        return not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()


TRIALS = (
    Trial("custom autograd functions", _hears_functions, _BY_DYNAMO, trained=True),
    Trial(
        "activation checkpoints",
        lambda: all(_hears_checkpoints(reentrant=which) for which in (True, False)),
        _BY_DYNAMO,
        trained=True,
    ),
    Trial(
        "casts of float32 tensors to float32",
        _hears_own_casts,
        "such a cast keeps no operation in full precision; an override does",
    ),
    Trial(
        "steps of nn.MultiheadAttention in eval mode",
        _hears_attention,
        "the layer is one operation, in full precision",
    ),
    Trial(
        "regions of torch.inference_mode",
        _hears_inference,
        "their results may require a gradient; use torch.no_grad",
    ),
)
"""Every trial."""


@cache
def failed(version: str) -> tuple[Trial, ...]:
    """Return the trials that are not heard with this release; warn of each once.

    Args:
        version: The release of torch.
    """
    # In this thread: after a fake mode in another one, that ends, torch 2.11 crashes.
    # A call in inference mode may be the first to capture.
    with (
        settings.fork_rng([]),
        threads.without_modes(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        unheard = tuple(trial for trial in TRIALS if not _heard(trial))
    for trial in unheard:
        warn(
            f"a capture does not notice {trial.feature} with torch {version}: "
            f"{trial.instead}; amprewrite is tested with {threads.TESTED}"
        )
    return unheard


def _heard(trial: Trial) -> bool:
    with suppress(Exception):  # torch may refuse in any way
        return trial.is_heard()
    return False


# Custom autograd functions and hooks on saved tensors, as a model applies them.
#
# Models bind the functions that apply them once and under any name (``ste = F.apply``,
# ``from torch.utils.checkpoint import checkpoint``), so that replacing those misses
# them; and torch moves what these call from release to release. Each watcher rests on a
# step that every release takes: it looks up the public ``forward`` of the function, and
# enters the public class of the hooks.

LOOKED_UP = "forward"
"""Attribute of its class that an autograd function needs to be applied."""


def noting_functions(note: Callable[[type], None]) -> AbstractContextManager[None]:
    """Call ``note`` with the class whenever a custom autograd function is applied.

    It is called where torch looks up the function's ``forward``: at least once for each
    call of ``apply``, and where a model itself reads or calls the ``forward``.

    Args:
        note: Called in this thread alone.
    """
    kind: Any = type(torch.autograd.Function)
    look_up = kind.__getattribute__

    def noted(function: Any, name: str) -> Any:
        if name == LOOKED_UP:
            note(function)
        return look_up(function, name)

    return replaced(kind, "__getattribute__", noted)


def noting_saved_tensors(note: Callable[[type], None]) -> AbstractContextManager[None]:
    """Call ``note`` with the class whenever hooks on saved tensors are entered.

    They are ``torch.autograd.graph.saved_tensors_hooks``, and the activation
    checkpoints without re-entrance that derive from it.

    Args:
        note: Called in this thread alone.
    """
    kind: Any = torch.autograd.graph.saved_tensors_hooks
    enter = kind.__enter__

    def noted(hooks: object) -> Any:
        note(type(hooks))
        return enter(hooks)

    return replaced(kind, "__enter__", noted)


def is_checkpoint(kind: type) -> bool:
    """Return whether a class that was noted is of an activation checkpoint of torch."""
    return kind.__module__ == torch.utils.checkpoint.__name__

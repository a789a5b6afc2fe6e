"""Run a model by dynamo: captured when it is called, with breaks between its graphs."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from amprewrite.errors import AmpError, CaptureError, warn
from amprewrite.frameworks.base import announce
from amprewrite.frameworks.torch_fx.backend import Backend
from amprewrite.frameworks.torch_fx.capture.export import (
    model_device,
    offending_line,
)
from amprewrite.frameworks.torch_fx.capture.warmup import warm_up
from amprewrite.frameworks.torch_fx.compat import (
    compiling,
    module_hooks,
    settings,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.compiling import (
    failing_line,
    inside_transform,
    is_of_dynamo,
)
from amprewrite.frameworks.torch_fx.programs.part_hooks import without_users_hooks
from amprewrite.frameworks.torch_fx.untouched.undisturbed import Untouched
from amprewrite.plan import join_plans

NO_GRAPH = "rewritten 0 ops: dynamo captured no graph of this model; {}"
"""Warning about a model in which dynamo finds only graph breaks, with a remedy."""

INSIDE_TRANSFORM = (
    "this call runs in full precision: dynamo captures nothing inside of torch.func "
    "transforms (grad, vmap, jvp); {}"
)
"""Warning about a call that is transformed, with a remedy."""


def lazy_runner(model: nn.Module, backend: Backend) -> Callable[..., Any]:
    """Return ``model`` as a function that dynamo captures and ``backend`` rewrites.

    The function raises CaptureError if the backend cannot read a graph, and the error
    of a plan that is refused.
    """
    captured = _Captured(model, backend)
    warm, known = False, 0
    advice = backend.reason or "convert with args"

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal warm, known
        if inside_transform():
            warn(INSIDE_TRANSFORM.format(advice))
            return model(*args, **kwargs)
        with settings.without_any_autocast(), module_hooks.without_trackers():
            if warm:
                output = captured(args, kwargs)
            else:
                model_device(model)  # of which there is one
                output = captured.first(args, kwargs)
                warm = True
        if len(backend.plans) > known:
            known = len(backend.plans)
            announce(join_plans(backend.plans))
        elif not known:
            warn(NO_GRAPH.format(advice))
        return output

    return compiling.uncompiled(run)


class _Captured:
    """A model that dynamo captures, with other settings where these fail.

    Attributes:
        breaks: Whether a graph ends at ops with results of data-dependent extents: some
            of them cannot be captured.
    """

    def __init__(self, model: nn.Module, backend: Backend) -> None:
        self._model, self.breaks = model, False
        self._compiled = compiling.compiled(model, backend, _while_captured)

    def first(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of the model; if it is refused, the model is put back.

        A part of it may have run by then.

        Raises:
            AmpError: The backend refused a graph.
            CaptureError: The model fails on these arguments, or dynamo cannot capture a
                part of it.
        """
        written = self.warm_up(args, kwargs)
        with threads.without_users_modes():
            before = Untouched(self._model)
        for memory in written:
            before.writes.copy(memory)
        try:
            return self(args, kwargs)
        except AmpError:
            before.restore(hooks=False)
            raise

    def warm_up(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[torch.UntypedStorage]:
        """Call the model itself once, without effects.

        Returns:
            The memory that it writes to.

        Raises:
            CaptureError: It fails on these arguments.
        """
        with (
            settings.dynamo_settings(),
            threads.capturing(),
            threads.without_users_modes(),
            without_users_hooks(self._model),
        ):
            return warm_up(self._model, args, kwargs)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of the model.

        Raises:
            AmpError: The backend refused a graph.
            CaptureError: Dynamo cannot capture a part of the model.
        """
        try:
            with settings.dynamo_settings(breaks=self.breaks):
                return self._compiled(*args, **kwargs)
        except RuntimeError as error:
            inner = getattr(error, "inner_exception", None)  # of a backend
            if isinstance(inner, AmpError):
                raise inner from None
            if inner is None and not is_of_dynamo(error):
                raise
            if inner is None:
                self.warm_up(args, kwargs)
            has_run = bool(offending_line(error))  # a part of it, which has effects
            if inner is not None or has_run or self.breaks:
                raise _refusal(self._model, error, inner) from error
        self.breaks = True
        return self(args, kwargs)


def _refusal(
    model: nn.Module, error: RuntimeError, inner: Exception | None
) -> CaptureError:
    """Return the error that dynamo, or the backend, cannot capture a part of a model.

    Args:
        model: The model.
        error: The error of dynamo.
        inner: The error of the backend; None if it was not called.
    """
    cause = str(inner or error).strip().split("\n")[0]
    where = failing_line(error)
    at = f" at {where}" if where else ""
    what = "brought to ATen ops" if inner else "captured by dynamo"
    return CaptureError(
        f"a part of {type(model).__name__} cannot be {what}{at}: {cause}; keep that "
        f"part out with torch.compiler.disable"
    )


@contextmanager
def _while_captured() -> Generator[None]:
    """Make dynamo capture attention as ops, and masks without their values.

    The log of fake tensors repeats each error that is raised.
    """
    unheard = threads.silenced("torch._subclasses.fake_tensor")
    with settings.slow_attention_path(), settings.plain_causal_hint(), unheard:
        yield

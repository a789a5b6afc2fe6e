"""Tensors of one run of a torch module, and calls of one, as they are made."""

import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any

import torch
from torch import nn

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.base import Attached, Watcher
from amprewrite.frameworks.torch_fx.compat.operators import FunctionMode, in_transform
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode_of
from amprewrite.frameworks.torch_fx.compat.threads import apart, is_capturing
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.plain.written import share_again
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.measure.runs import SEED, Look, Observed, numbered
from amprewrite.measure.runs import output_gradients as drawn_gradients

_modules: Any = torch.nn.modules.module
_compiler: Any = torch.compiler
_random: Any = torch.random

Noted = Callable[[str, str, torch.Tensor, Any, str | None], None]
"""Consumer of the results of functions.

It is called with the name, the module path, the tensor, the function, and the name of
the tensor that is its first argument; None where that is no tensor.
"""


class Recorder(FunctionMode):
    """Mode that reports the float tensors that functions make, views left out.

    A tensor that a function changes in place is a new one. Attributes of tensors are no
    functions.

    Args:
        note: Consumer of the tensors.
    """

    def __init__(self, note: Noted) -> None:
        """Record nothing yet."""
        super().__init__()
        self.note = note
        self.path: list[str] = []
        self.counts: dict[str, int] = {}
        self.names: dict[int, tuple[Any, str]] = {}

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call the function, and report its results that are new float tensors."""
        leaves: list[Any] = pytree.tree_leaves((args, kwargs))
        before = [(x, _version(x)) for x in leaves if isinstance(x, torch.Tensor)]
        result = function(*args, **kwargs)
        name = getattr(function, "__name__", "").partition(".")[0]
        types = torch.Tensor, tuple, list
        if name == "__get__" or not issubclass(type(result), types):
            return result
        is_method = bool(args) and isinstance(args[0], torch.Tensor)
        source = self.name_of(args[0]) if is_method else None
        for x in pytree.tree_leaves(result):
            if _is_float(x) and not any(_shares(x, *pair) for pair in before):
                called = numbered(name, self.counts)
                self.names[id(x)] = (weakref.ref(x), called)
                where = self.path[-1] if self.path else ""
                self.note(called, where, x, function, source)
        return result

    def name_of(self, x: torch.Tensor) -> str:
        """Return the name of a tensor; empty if no function was seen to make it."""
        reference, name = self.names.get(id(x), (None, ""))
        return name if reference is not None and reference() is x else ""

    @contextmanager
    def inside(self, model: torch.nn.Module) -> Generator[None]:
        """Follow which submodule runs.

        By hooks of all modules, since a hook of one would be a change of a scaled or
        converted model, which would be captured anew.
        """
        untyped: Any = model
        paths = {id(module): path for path, module in untyped.named_modules()}

        def enter(module: Any, _args: Any) -> None:
            if id(module) in paths:
                self.path.append(paths[id(module)])

        def leave(module: Any, *_: Any) -> None:
            if id(module) in paths:
                self.path.pop()

        handles: list[Any] = [
            _modules.register_module_forward_pre_hook(enter),
            _modules.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _is_float(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _version(x: Any) -> int:
    """Return the count of changes in place; inference tensors have none."""
    return -1 if x.is_inference() else int(x._version)  # noqa: SLF001  # has no public name


def _shares(result: Any, given: Any, version: int) -> bool:
    """Return whether a result is an argument, or its storage, and was not written.

    A function may also return a view of its own new tensor, as ``linear`` does.
    """
    if result is not given and _storage(result) != _storage(given):
        return False
    return version == _version(given)


def _storage(x: Any) -> object:
    """Return the identity of a tensor's storage, or of one that has none."""
    try:
        return x.untyped_storage()._cdata  # noqa: SLF001  # two Python objects may wrap one
    except (NotImplementedError, RuntimeError):
        return id(x)


def observe(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    look: Look,
    *,
    gradients: bool = True,
) -> None:
    """Show the parameters of a module, and every float tensor that a function makes.

    With gradients the tensors are shown as the backward pass makes their gradients, in
    the order of that. Buffers, gradients and the state of random numbers stay as they
    are.

    Args:
        model: The module.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        look: Consumer of the tensors.
        gradients: Whether to run backward; see :mod:`amprewrite.measure
            .output_gradients` for the gradients of the outputs.

    Raises:
        ArgumentError: Gradients are wanted, and no output is a float tensor that needs
            one.
    """

    def note(name: str, where: str, x: torch.Tensor, _func: Any, _of: Any) -> None:
        look(Observed(name, where, False, False, partial(values_of, x)))
        if gradients and x.requires_grad:

            def note_gradient(gradient: torch.Tensor) -> None:
                look(Observed(name, where, False, True, partial(values_of, gradient)))

            hooked: Any = x
            hooked.register_hook(note_gradient)

    parameters = [(n, p) for n, p in model.named_parameters() if _is_float(p)]
    for name, p in parameters:
        look(Observed(name, "", True, False, partial(values_of, p)))
    found = run_recorded(model, args, kwargs, Recorder(note), gradients=gradients)
    for name, gradient in found:
        look(Observed(name, "", True, True, partial(values_of, gradient)))


def run_recorded(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    recorder: Recorder,
    *,
    gradients: bool = True,
) -> list[tuple[str, torch.Tensor]]:
    """Run a module with a recorder, and return the gradients of its parameters.

    Args:
        model: The module.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        recorder: Consumer of the tensors of the run.
        gradients: Whether to run backward.

    Returns:
        Name and gradient of each parameter that is used and trained.

    Raises:
        ArgumentError: Gradients are wanted, and no output is a float tensor that needs
            one.
    """
    if _captures(model):  # captured now, with nothing recorded
        with unchanged(model, gradients=gradients):
            model(*args, **kwargs)
    with unchanged(model, gradients=gradients):
        with recorder.inside(model), recorder:
            result = model(*args, **kwargs)
        if not gradients:
            return []
        outputs, drawn = output_gradients(model, result)
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if not trained:
            msg = (
                f"{type(model).__name__} has no parameter that is trained; want one "
                "with requires_grad, or gradients=False"
            )
            raise ArgumentError(msg)
        found: list[Any] = list(
            torch.autograd.grad(
                outputs, [p for _, p in trained], drawn, allow_unused=True
            )
        )
    pairs = zip(trained, found, strict=True)
    return [(name, gradient) for (name, _), gradient in pairs if gradient is not None]


def _captures(model: torch.nn.Module) -> bool:
    """Return whether a model may be captured while it runs: converted, or scaled."""
    if programs_of(model) is not None:
        return True
    names = (name for part in model.modules() for name in vars(part))
    return any(name.startswith("_amprewrite") for name in names)


def values_of(x: torch.Tensor) -> Any:
    """Return the values of a tensor, in float64, on the host."""
    return x.detach().to_dense().double().cpu().numpy()


def output_gradients(
    model: torch.nn.Module, result: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the float tensors of a result, and a gradient for each.

    See :func:`amprewrite.measure.runs.output_gradients`.

    Raises:
        ArgumentError: There is none that needs a gradient.
    """
    leaves: list[Any] = pytree.tree_leaves(result)
    outputs = [y for y in leaves if isinstance(y, torch.Tensor) and y.requires_grad]
    if not outputs:
        msg = (
            f"{type(model).__name__} gives no float tensor that depends on a "
            "parameter; want an output, or a loss, to differentiate"
        )
        raise ArgumentError(msg)
    drawn = drawn_gradients([tuple(y.shape) for y in outputs])
    pairs = zip(outputs, drawn, strict=True)
    return outputs, [torch.as_tensor(g).to(y) for y, g in pairs]


@contextmanager
def unchanged(model: torch.nn.Module, *, gradients: bool = True) -> Generator[None]:
    """Run uncompiled with seeded random numbers, and put the model back."""
    try:
        with (
            undisturbed(model),
            _random.fork_rng(),
            torch.set_grad_enabled(gradients),
            _compiler.set_stance("force_eager"),
        ):
            torch.manual_seed(SEED)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
            yield
    finally:
        programs = programs_of(model)
        if programs is not None:
            share_again(programs.shared.programs, model)


def attach(model: nn.Module, watcher: Watcher) -> Attached:
    """Show the calls of a module to a watcher, each before it runs.

    A call that is compared waits, while a thread of its own gets copies of the
    arguments: modes of the caller (autocast, inference, no gradients) do not reach it.
    Calls within the comparison are not shown, nor are those that a compiler or a
    transformation of torch.func traces.

    Args:
        model: The module.
        watcher: Consumer of the calls.
    """
    comparing = local()

    def before(_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or getattr(comparing, "now", False):
            return
        if in_transform() or fake_mode_of(pytree.tree_leaves((args, kwargs))):
            return
        if is_capturing():  # as verify does with a monitored model
            return
        number = watcher.due()
        if not number:
            return

        def compare() -> Any:
            comparing.now = True  # in this thread, which ends with the comparison
            copies = pytree.tree_map(_copied, (args, kwargs))
            return watcher.compare(number, *copies)

        apart(compare)()

    untyped: Any = model
    handle = untyped.register_forward_pre_hook(before, with_kwargs=True)
    return Attached(model, handle.remove)


def _copied(leaf: Any) -> Any:
    """Return a tensor of the same values, that is no part of a graph."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)

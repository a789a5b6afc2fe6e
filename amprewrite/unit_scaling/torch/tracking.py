"""Scales of the tensors of a torch module: every call of a function is seen."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.unit_scaling.torch.gradients import output_gradients, unchanged
from amprewrite.unit_scaling.torch.program.scaled_model import is_scaled
from amprewrite.unit_scaling.torch.scale import OPERATOR
from amprewrite.unit_scaling.tracking import Scale, Tracked, numbered

_modules: Any = torch.nn.modules.module


@dataclass
class _Seen:
    """One tensor while the model runs; its gradient comes later."""

    name: str
    where: str
    value: torch.Tensor
    forward: Scale
    scaled: str | None
    backward: list[Scale] = field(default_factory=list[Scale])


def _scale(x: torch.Tensor) -> Scale:
    return Scale.of(x.detach().double().cpu().numpy())


def _shares(result: torch.Tensor, given: object) -> bool:
    """Return whether a result is an argument, or a view of the same tensor.

    A function may also return a view of what it made itself, as ``linear`` does.
    """
    if not isinstance(given, torch.Tensor):
        return False
    bases: list[Any] = [result._base, given._base]  # noqa: SLF001  # set for views alone
    return result is given or bases[0] is given or (bases[0] is bases[1] is not None)


class _Recorder(TorchFunctionMode):
    """Record the results of functions, each with the module that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[_Seen] = []
        self.path: list[str] = []
        self.counts: dict[str, int] = {}
        self.names: dict[int, str] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and record its result if it is a new float tensor."""
        del types
        result = func(*args, **(kwargs or {}))
        is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
        given = pytree.tree_leaves(args)
        if is_float and not any(_shares(result, x) for x in given):
            name = getattr(func, "__name__", "").partition(".")[0]
            of = args[0] if func is OPERATOR else None
            self.note(numbered(name, self.counts), result, of)
        return result

    def note(self, name: str, value: torch.Tensor, of: torch.Tensor | None) -> None:
        """Record a tensor, and its gradient once it comes.

        Args:
            name: Its name.
            value: The tensor.
            of: What it is but for factors of unit scaling.
        """
        where = self.path[-1] if self.path else ""
        scaled = None if of is None else self.names.get(id(of), "")
        found = _Seen(name, where, value, _scale(value), scaled)
        self.seen.append(found)
        self.names[id(value)] = name
        if value.requires_grad:

            def note_gradient(gradient: torch.Tensor) -> None:
                found.backward.append(_scale(gradient))

            hooked: Any = value
            hooked.register_hook(note_gradient)

    @contextmanager
    def inside(self, model: torch.nn.Module) -> Generator[None]:
        """Follow which submodule runs.

        By hooks of all modules, since those of one would change what a scaled or
        converted model is captured by.
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


def track(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tracked]:
    """Return the scales of parameters, and of every tensor that a function makes.

    Raises:
        ArgumentError: No output is a float tensor that needs a gradient.
    """
    recorder = _Recorder()
    if is_scaled(model) or programs_of(model):  # captured now, with nothing recorded
        with unchanged(model):
            model(*args, **kwargs)
    with unchanged(model):
        parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        with recorder.inside(model), recorder:
            result = model(*args, **kwargs)
        outputs, drawn = output_gradients(model, result)
        gradients = torch.autograd.grad(
            outputs,
            [p for _, p in parameters],
            drawn,
            allow_unused=True,
        )
    found: list[Any] = list(gradients)  # None where a parameter is not used
    rows = [
        Tracked(
            name,
            "",
            tuple(p.shape),
            _scale(p),
            None if g is None else _scale(g),
            parameter=True,
        )
        for (name, p), g in zip(parameters, found, strict=True)
    ]
    return rows + [
        Tracked(
            seen.name,
            seen.where,
            tuple(seen.value.shape),
            seen.forward,
            seen.backward[-1] if seen.backward else None,
            scaled=seen.scaled,
        )
        for seen in recorder.seen
    ]

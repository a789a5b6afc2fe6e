"""Scales of the tensors of a torch module: every call of a function is seen."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.unit_scaling.torch.gradients import output_gradients, unchanged
from amprewrite.unit_scaling.tracking import Scale, Tracked, numbered


@dataclass
class _Seen:
    """One tensor while the model runs; its gradient comes later."""

    name: str
    where: str
    value: torch.Tensor
    forward: Scale
    backward: list[Scale] = field(default_factory=list[Scale])


def _scale(x: torch.Tensor) -> Scale:
    return Scale.of(x.detach().double().cpu().numpy())


class _Recorder(TorchFunctionMode):
    """Record the results of functions, each with the module that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[_Seen] = []
        self.path: list[str] = []
        self.counts: dict[str, int] = {}

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
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            is_given = any(result is x for x in pytree.tree_leaves(args))
            if not is_given and result._base is None:  # noqa: SLF001  # set for views alone
                name = getattr(func, "__name__", "").removesuffix(".default")
                self.note(numbered(name, self.counts), result)
        return result

    def note(self, name: str, value: torch.Tensor) -> None:
        """Record a tensor, and its gradient once it comes."""
        where = self.path[-1] if self.path else ""
        found = _Seen(name, where, value, _scale(value))
        self.seen.append(found)
        if value.requires_grad:

            def note_gradient(gradient: torch.Tensor) -> None:
                found.backward.append(_scale(gradient))

            hooked: Any = value
            hooked.register_hook(note_gradient)

    @contextmanager
    def inside(self, model: torch.nn.Module) -> Generator[None]:
        """Follow which submodule runs."""
        handles: list[Any] = []
        untyped: Any = model
        for path, module in untyped.named_modules():

            def enter(_module: Any, _args: Any, path: str = path) -> None:
                self.path.append(path)

            def leave(*_: Any) -> None:
                self.path.pop()

            handles += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave, always_call=True),
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
        Tracked(name, "", tuple(p.shape), _scale(p), None if g is None else _scale(g))
        for (name, p), g in zip(parameters, found, strict=True)
    ]
    return rows + [
        Tracked(
            seen.name,
            seen.where,
            tuple(seen.value.shape),
            seen.forward,
            seen.backward[-1] if seen.backward else None,
        )
        for seen in recorder.seen
    ]

"""Features of a model seen during the capture that export does not keep."""

import inspect
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from amprewrite.frameworks.torch_fx.capture.attribute_reads import (
    Names,
    kinds_of_settings,
    recording,
)
from amprewrite.frameworks.torch_fx.compat import pytrees, settings, threads, watchers
from amprewrite.frameworks.torch_fx.untouched.attributes import Attributes
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant
from amprewrite.frameworks.torch_fx.untouched.kinds import is_same
from amprewrite.frameworks.torch_fx.untouched.surroundings import Surroundings
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed

MACHINERY = (
    *("torch._library.", "torch._functorch.", "torch._higher_order_ops."),
    *("torch._dynamo.", "torch._export.", "torch._subclasses."),
    "amprewrite.unit_scaling.",  # its factors are an operator
)
"""Packages with autograd functions that stand for an op which a graph keeps whole.

An example is a custom op with its own derivative; other autograd functions are inlined,
torch's own included.
"""


@dataclass
class Seen:
    """Features that a model was seen to use during the capture.

    Attributes:
        functions: Names of custom ``autograd.Function`` classes; export inlines their
            forward and drops their backward.
        checkpoints: Number of activation checkpoints; export inlines them.
        saved: Number of other regions with hooks on the tensors that autograd saves;
            export drops the hooks.
        hooks: Number of hooks on gradients; export drops them.
        written: Attributes that the forward writes, which export restores, and
            arguments whose lists, dicts or other containers it changes: export gives
            it copies of these.
        constants: Constants that the forward writes to attributes where nothing was;
            export restores them, and a call of the program writes them.
        seeds: Number of times that the forward seeds the random generator; export does
            it only while tracing.
        drawn: Python modules that the forward draws random numbers by, not torch;
            export keeps the numbers as constants.
        stored: Number of tensors that the forward stores outside of the model, and that
            are no constants; export does it once.
        unnoticed: Names of features that the release of torch does not tell a capture
            of, and that export drops.
        attributes: Names of the attributes that the forward reads, of any part.
    """

    functions: list[str] = field(default_factory=list[str])
    checkpoints: int = 0
    saved: int = 0
    hooks: int = 0
    written: list[str] = field(default_factory=list[str])
    constants: list[Constant] = field(default_factory=list[Constant])
    seeds: int = 0
    drawn: list[str] = field(default_factory=list[str])
    stored: int = 0
    unnoticed: list[str] = field(default_factory=list[str])
    attributes: Names = frozenset()

    def reason(self, *, training: bool) -> str:
        """Return the reason why the capture is not faithful; empty if it is."""
        if self.written:
            names = ", ".join(self.written)
            return f"export leaves out the writes of forward to {names}"
        if self.seeds:
            return "export does not record that forward seeds the random generator"
        if self.drawn:
            names = " and ".join(self.drawn)
            return (
                f"export keeps the numbers that forward draws by {names} as constants"
            )
        return self._dropped_gradients() if training else ""

    def _dropped_gradients(self) -> str:
        if self.functions:
            return (
                f"export drops the backward of {', '.join(sorted(set(self.functions)))}"
            )
        if self.checkpoints:
            return "export removes activation checkpoints"
        if self.saved:
            return "export drops hooks on saved tensors"
        if self.hooks:
            return "export drops hooks on gradients"
        if self.unnoticed:
            names = " and ".join(self.unnoticed)
            return f"torch {torch.__version__} does not tell a capture of {names}"
        return ""


@contextmanager
def watching(seen: Seen) -> Generator[None]:
    """Record custom autograd functions and checkpoints while the model is traced."""
    failed = watchers.failed(torch.__version__)
    seen.unnoticed = [trial.feature for trial in failed if trial.trained]

    def noted_function(kind: type) -> None:
        if watchers.is_checkpoint(kind):
            seen.checkpoints += 1
        elif not kind.__module__.startswith(MACHINERY):
            seen.functions.append(kind.__name__)

    def noted_saving(kind: type) -> None:
        if watchers.is_checkpoint(kind):
            seen.checkpoints += 1
        else:
            seen.saved += 1

    def noted_hook(tensor: torch.Tensor, hook: Any) -> Any:
        seen.hooks += 1
        return register(tensor, hook)

    def noted_seed(seed: int) -> torch.Generator:
        seen.seeds += 1
        return manual_seed(seed)

    manual_seed: Any = vars(torch)["manual_seed"]
    register: Any = vars(torch.Tensor)["register_hook"]
    with (
        settings.fork_rng([]),
        threads.replaced(torch, "manual_seed", noted_seed),
        threads.replaced(torch.random, "manual_seed", noted_seed),
        threads.replaced(torch.Tensor, "register_hook", noted_hook),
        watchers.noting_functions(noted_function),
        watchers.noting_saved_tensors(noted_saving),
    ):
        yield


@contextmanager
def watching_attributes(
    model: torch.nn.Module, seen: Seen, around: Surroundings
) -> Generator[None]:
    """Record attributes and arguments that the forward writes; restore attributes.

    Export restores them too, but neither new ones nor what is written in place.

    Args:
        model: The model.
        seen: Receives the record.
        around: The variables around the model.
    """
    before, assigned = list[tuple[Attributes, _Arguments]](), set[str]()
    kinds, recorder, reads = kinds_of_settings(model), ExitStack(), set[str]()

    def note(part: torch.nn.Module, name: str, _: object) -> None:
        if part is model:
            assigned.add(name)

    def enter(_: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        before.append((Attributes.of(model), _Arguments(model, args, kwargs)))
        if len(before) == 1:
            recorder.enter_context(recording(reads, kinds))

    def leave(*_: object) -> None:
        if len(before) == 1:
            recorder.close()
        then, given = before.pop()
        seen.written = [*then.names(assigned), *given.changed()]
        seen.drawn, seen.constants = then.drawn(), then.constants()
        seen.attributes |= reads

    unwatched = undisturbed(model, watched=False, around=around)
    with unwatched as outside, outside.writes.watching(traced=True), recorder:
        hooks = (
            model.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
            model.register_forward_hook(leave),
            torch_module.register_module_buffer_registration_hook(note),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        seen.written += outside.written()


class _Arguments:
    """Arguments of a call, with the structure and the leaves that they had."""

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Record them.

        Args:
            model: The model that is called.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        formals = inspect.signature(model.forward).parameters.values()
        names = [
            p.name for p in formals if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        names = names[: len(args)]
        names += map(str, range(len(names), len(args)))  # of *args
        given = (*zip(names, args, strict=False), *kwargs.items())
        flatten = pytrees.pytree.tree_flatten
        self._given = [(name, value, flatten(value)) for name, value in given]

    def changed(self) -> Iterator[str]:
        """Yield the arguments that have other leaves or another structure now."""
        for name, value, (leaves, structure) in self._given:
            now, structure_now = pytrees.pytree.tree_flatten(value)
            if structure_now != structure or not all(map(is_same, now, leaves)):
                yield f"the argument {name}"

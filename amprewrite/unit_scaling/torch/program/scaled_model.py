"""The module that ``unit_scale`` returns: of a class derived from the model's own."""

import copy
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from amprewrite.errors import (
    CaptureError,
    PlanMismatchError,
    UnsupportedError,
    warn,
)
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.capture.named_weights import read_by_name
from amprewrite.frameworks.torch_fx.capture.program import (
    is_program,
    open_graph,
    open_program,
)
from amprewrite.frameworks.torch_fx.capture.seen import Seen
from amprewrite.frameworks.torch_fx.compat.module_parts import attributes_of
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.tensor_internals import is_readable
from amprewrite.frameworks.torch_fx.derived.classes import programs_of, refuse_parts
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.signature import Signature, signature_of
from amprewrite.frameworks.torch_fx.programs.structure import (
    Key,
    Names,
    parts_of,
    structure_key,
)
from amprewrite.unit_scaling.graph.scales import ScalePlan
from amprewrite.unit_scaling.program import Settings
from amprewrite.unit_scaling.rules import STEADY
from amprewrite.unit_scaling.torch.program.insert import insert_scales

# Unit initialisation: matrices of standard deviation 1, biases of zero.

BIAS = re.compile(r"(.*_)?bias(_.*)?|.*bias")
"""Names of vectors that start as zeros; ``bias_ih_l0`` is one of a recurrent layer."""


def init_units(model: nn.Module) -> None:
    """Divide each parameter of two or more dimensions by its scale; zero biases.

    Those of zeros, which have no deviation, are drawn anew. Vectors and other constants
    (gains of normalisations) stay as they are.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() > 1:
                if not _is_constant(parameter):
                    parameter.div_(_scale_of(parameter))
                elif not parameter.any():
                    parameter.normal_()
            elif BIAS.fullmatch(name.rpartition(".")[2]):
                parameter.zero_()


def _scale_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return the deviation; the root mean square of gains, which hardly vary.

    Such are those of a weight norm.
    """
    wide = parameter.float()
    deviation, mean = wide.std(), wide.mean()
    return (
        deviation if deviation * STEADY >= mean.abs() else wide.square().mean().sqrt()
    )


def _is_constant(parameter: torch.Tensor) -> bool:
    """Return whether all numbers are equal; their deviation may be a rounding."""
    return bool((parameter == parameter.flatten()[:1]).all())


# Warn once if a unit-scaled model is trained with a loss scale.

LARGEST = 64.0
"""Gradient of a loss above which it counts as scaled; scales begin at 128 as a rule."""


class LossScaleWatch:
    """Checks the first gradient that reaches a loss of a unit-scaled model.

    Attributes:
        done: Whether one was checked.
    """

    done: bool = False

    def __call__(self, output: Any) -> Any:
        """Return the output of a call, with a hook on each scalar."""
        if self.done or torch.compiler.is_compiling():
            return output
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.dim():
                hooked: Any = leaf  # torch does not say what a hook takes
                hooked.register_hook(self._look)
        return output

    def _look(self, gradient: torch.Tensor) -> None:
        """Warn if the gradient of a loss is large."""
        if not is_readable(gradient):
            return
        size = abs(float(gradient))
        if not self.done and size > LARGEST:
            warn(
                f"training a unit-scaled model with a loss scale: the gradient of the "
                f"loss is {size:g}; gradients have a scale near 1 without it, and "
                "overflow 16 and 8 bits with it; want a loss scale of 1"
            )
        self.done = True


_STATE = "_amprewrite_scaled"
"""Attribute of a scaled model: its programs."""


@dataclass
class Program:
    """One capture of a model with its factors.

    Attributes:
        module: The graph; its parameters are those of the model.
        signature: The calls that it takes.
        structure: Key of the modes, hooks and flags that it was captured with, and of
            the parameters that are tied: a weight with two uses is no cut edge.
        scales: The scale plan.
    """

    module: GraphModule
    signature: Signature
    structure: Key
    scales: ScalePlan

    def takes(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], structure: Key
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments as the program takes them; None if it does not."""
        if structure != self.structure:
            return None
        try:
            found = self.signature.arrange(args, kwargs)
            self.signature.check(*found)
        except (PlanMismatchError, TypeError):
            return None
        return found

    def follow(self, model: nn.Module) -> None:
        """Take the tensors that the model has now under the captured names."""
        parts = dict(parts_of(model))
        for path, part in parts_of(self.module):
            source = parts.get(path)
            if source is None:
                continue
            for kind in ("_parameters", "_buffers"):
                held, given = vars(part)[kind], vars(source)[kind]
                for name in held.keys() & given.keys():
                    held[name] = given[name]


@dataclass
class Programs:
    """The programs of one scaled model.

    Attributes:
        settings: How it is scaled.
        scales: The scale plan of the program that ran last.
        found: Its programs, the last one that ran first.
        watch: Warns of a loss scale.
    """

    settings: Settings
    scales: ScalePlan
    found: list[Program] = field(default_factory=list[Program])
    watch: LossScaleWatch = field(default_factory=LossScaleWatch)

    def call(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the program for a call; capture one if there is none."""
        program, given = _find(self, model, args, kwargs)
        return self.watch(program.module(*given[0], **given[1]))

    def find(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Program, tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the program for a call, and its arguments; capture one if needed."""
        view, structures = _plain_view(model), dict[Names, Key]()
        for program in self.found:
            names = program.structure[0]
            if names not in structures:
                structures[names] = structure_key(view, names, by_name=True)
            given = program.takes(args, kwargs, structures[names])
            if given is not None:
                break
        else:
            program = capture(model, args, kwargs, self.settings)
            self.found.append(program)
            given = program.signature.arrange(args, kwargs)
        self.found.remove(program)
        self.found.insert(0, program)
        self.scales = program.scales
        program.follow(model)
        return program, given


_compiler: Any = torch.compiler
_find: Any = _compiler.disable(Programs.find)
"""Finds the program of a call outside of dynamo, which would guard on no flag of it."""


def unit_scale(
    model: nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: Settings,
    *,
    init: bool,
) -> nn.Module:
    """Return a scaled copy of a model; see :func:`amprewrite.unit_scale`.

    Raises:
        CaptureError: The model cannot be captured as one graph.
        UnitScalingError: An op has no rule.
        UnsupportedError: The model is converted or scaled already.
    """
    if not isinstance(model, nn.Module) or is_program(model):
        return _scaled_program(model, args, kwargs, settings, init=init)
    _refuse(model)
    made = copy.deepcopy(model)
    if init:
        init_units(made)
    program = capture(made, args, kwargs, settings)
    made.__class__ = _derived(type(made))
    vars(made)[_STATE] = Programs(settings, program.scales, [program])
    return made


def capture(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Settings
) -> Program:
    """Return the program of a plain or scaled model for one call."""
    plain = _plain_view(model)
    shapes = _dynamic(plain, args, kwargs)
    captured = export_model(plain, args, kwargs, shapes)
    read_by_name(captured.module, plain)
    _refuse_lost(captured.seen)
    # After the capture: with the flags that a first call sets.
    structure = structure_key(plain, captured.seen.attributes, by_name=True)
    scales = insert_scales(captured.module, (args, kwargs), settings)
    signature = signature_of(plain, captured.module)
    return Program(captured.module, signature, structure, scales)


def _refuse_lost(seen: Seen) -> None:
    """Refuse a capture that is not the model: its gradients would be of another one.

    Checkpoints are lost without a word: they change no number, only the memory.

    Raises:
        CaptureError: Says what is lost.
    """
    if seen.written:
        warn(
            f"unit_scale: the scaled model does not write {', '.join(seen.written)}, "
            "which forward writes: torch.export keeps writes to buffers alone; want "
            "what is computed among the outputs, or in a buffer"
        )
    if reason := replace(seen, checkpoints=0, written=[]).reason(training=True):
        msg = (
            f"the model cannot be unit-scaled: {reason}; want a forward without that; "
            "derivatives of your own are kept in an op of torch.library.custom_op"
        )
        raise CaptureError(msg)


def _plain_view(model: Any) -> Any:
    """Return an object of the model's own class with the parts of the model."""
    plain = object.__new__(_plain(type(model)))
    plain.__dict__ = attributes_of(model).copy()
    plain.__dict__.pop(_STATE, None)
    return plain


def _dynamic(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return that the first extent of every tensor may vary: the batch."""
    untyped: Any = torch.export

    def vary(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] > 1:
            return {0: untyped.Dim.AUTO}
        return None

    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    return {k: pytree.tree_map(vary, value) for k, value in bound.arguments.items()}


def _scaled_program(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: Settings,
    *,
    init: bool,
) -> GraphModule:
    """Return a captured program with factors."""
    opened = open_program(model) if isinstance(model, ExportedProgram) else model
    module = copy.deepcopy(open_graph(opened))
    if init:
        init_units(module)
    untyped: Any = module
    untyped.scales = insert_scales(module, (args, kwargs), settings)
    return module


def _refuse(model: nn.Module) -> None:
    """Refuse a model that was rewritten before.

    Raises:
        UnsupportedError: It is converted, or scaled.
    """
    refuse_parts(model)
    if programs_of(model) is not None or isinstance(model, ConvertedModule):
        msg = (
            f"{type(model).__name__} is converted already; scale the plain model, and "
            "convert the result: amprewrite.convert(amprewrite.unit_scale(model, ...))"
        )
        raise UnsupportedError(msg)
    if is_scaled(model):
        msg = f"{type(model).__name__} is unit-scaled already; scale the plain model"
        raise UnsupportedError(msg)


def is_scaled(model: nn.Module) -> bool:
    """Return whether a model, or a part of it, is one that ``unit_scale`` made."""
    return any(_STATE in vars(part) for part in model.modules())


@cache
def _derived(kind: Any) -> Any:
    """Return the class of scaled models of class ``kind``."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_STATE].call(self, args, kwargs)

    untyped: Any = forward
    untyped.__signature__ = inspect.signature(kind.forward)
    body = {
        "__module__": kind.__module__,
        "__qualname__": f"Scaled{kind.__qualname__}",
        "__doc__": kind.__doc__,
        "_amprewrite_unscaled": kind,
        "forward": forward,
        "scales": property(lambda self: self.__dict__[_STATE].scales),
        "__deepcopy__": _copied,
        "__reduce_ex__": _reduced,
        "__setstate__": _restore,
    }
    return type(kind.__name__, (kind,), body)


def _plain(kind: Any) -> Any:
    return getattr(kind, "_amprewrite_unscaled", kind)


def _copied(model: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a scaled model, which captures its programs anew."""
    made: Any = _scaled_object(_plain(type(model)))
    memo[id(model)] = made
    made.__setstate__(copy.deepcopy(_state(model), memo))
    return made


def _reduced(model: Any, protocol: Any) -> Any:
    """Pickle a scaled model by its own class: the derived one has no name to load."""
    del protocol
    return _scaled_object, (_plain(type(model)),), _state(model)


def _restore(model: Any, state: Any) -> None:
    module, settings, scales = state
    _plain(type(model)).__setstate__(model, module)
    vars(model)[_STATE] = Programs(settings, scales)


def _state(model: Any) -> tuple[dict[str, Any], Settings, ScalePlan]:
    """Return the state of a copy: that of the module, without captured programs."""
    held: Any = _plain(type(model)).__getstate__(model)
    programs: Programs = attributes_of(model)[_STATE]
    module = {name: value for name, value in held.items() if name != _STATE}
    return module, programs.settings, programs.scales


def _scaled_object(kind: Any) -> Any:
    return object.__new__(_derived(kind))

"""Signature of a captured program, and the check that a call matches it."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import PlanMismatchError
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name
from amprewrite.frameworks.torch_fx.compat import (
    pytrees,
    shape_guards,
    tensor_internals,
)
from amprewrite.frameworks.torch_fx.compat.shape_guards import Guards
from amprewrite.frameworks.torch_fx.module.distributed import Place
from amprewrite.ir.text import tensor_text


@dataclass(frozen=True)
class Signature:
    """Calling convention and input types of a captured program.

    Attributes:
        names: Names of the model's parameters, in order.
        positional: Number of positional arguments at capture.
        keywords: Names of the keyword arguments at capture, in their order.
        tensors: For each flat input its dtype and extents (None where dynamic); None
            for an input that is no tensor.
        numbers: Value at capture, by flat index, of each input that is no tensor; it is
            part of the program: a number, a flag, a string or None.
        guards: Conditions on extents that vary.
        devices: Type of the device of each flat input that is a tensor, else None;
            empty if they are not known.
    """

    names: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]
    tensors: tuple[tuple[torch.dtype, tuple[int | None, ...]] | None, ...]
    numbers: Mapping[int, object] = field(default_factory=dict[int, object])
    guards: Guards = field(default_factory=Guards)
    devices: tuple[str | None, ...] = ()

    def arrange(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, split as at the capture.

        Raises:
            TypeError: An argument is missing, unexpected or given twice.
        """
        if len(args) == self.positional and tuple(kwargs) == self.keywords:
            return args, dict(kwargs)
        given = {self._name(index): arg for index, arg in enumerate(args)}
        if twice := [name for name in kwargs if name in given]:
            msg = f"converted module called with two values for {', '.join(twice)}"
            raise TypeError(msg)
        given.update(kwargs)
        positional = [self._name(index) for index in range(self.positional)]
        wanted = (*positional, *self.keywords)
        if set(given) != set(wanted):
            have = ", ".join(given) or "nothing"
            msg = (
                f"converted module called with ({have}); it was captured with "
                f"({', '.join(wanted)}); pass these, or convert with the arguments you "
                f"mean to use, or without args"
            )
            raise TypeError(msg)
        return (
            tuple(given[name] for name in positional),
            {name: given[name] for name in self.keywords},
        )

    def _name(self, index: int) -> str:
        """Return the name of a positional argument; those of ``*args`` have none."""
        return self.names[index] if index < len(self.names) else f"argument {index}"

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compare the arguments of a call with those of the capture.

        Raises:
            PlanMismatchError: Names the first input with another dtype, shape or value.
        """
        if self._fits((*args, *kwargs.values())):
            return
        leaves = pytrees.pytree.tree_leaves((args, dict(kwargs)))
        self._check_numbers(leaves)
        for number, (leaf, wanted) in enumerate(
            zip(leaves, self.tensors, strict=False)
        ):
            if wanted is None or not isinstance(leaf, torch.Tensor):
                continue
            dtype, shape = wanted
            same = leaf.dtype == dtype and len(leaf.shape) == len(shape)
            if not same or any(
                d is not None and d != have
                for d, have in zip(shape, leaf.shape, strict=True)
            ):
                extents = tuple("any" if d is None else d for d in shape)
                msg = (
                    f"input {number} is {_tensor_text(leaf)}; the program was captured "
                    f"for {tensor_text(dtype_name(dtype), extents)}; pass "
                    f"dynamic_shapes= for extents that vary, or convert without args"
                )
                raise PlanMismatchError(msg)
        if broken := self.guards.broken(leaves):
            msg = (
                f"the program was captured for inputs (args) with {broken}, since the "
                f"model takes another branch otherwise; {_OTHERWISE}"
            )
            raise PlanMismatchError(msg)

    def is_on(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether tensors are where those of the capture were.

        A program makes its masks and positions on the device of its capture.
        """
        leaves = pytrees.pytree.tree_leaves((args, dict(kwargs)))
        return all(
            not isinstance(leaf, torch.Tensor) or leaf.device.type == device
            for leaf, device in zip(leaves, self.devices, strict=False)
        )

    def fits_traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether arguments that are being traced are those of the capture.

        Extents that a tracer keeps symbolic have to vary here too.
        """
        try:
            args, kwargs = self.arrange(args, kwargs)
        except TypeError:
            return False
        leaves = pytrees.pytree.tree_leaves((args, dict(kwargs)))
        if len(leaves) != len(self.tensors):
            return False
        for number, (leaf, wanted) in enumerate(zip(leaves, self.tensors, strict=True)):
            if wanted is None or not isinstance(leaf, torch.Tensor):
                known = number in self.numbers
                other = known and not _is_same(leaf, self.numbers[number])
                if wanted is not None or other:
                    return False
                continue
            dtype, shape = wanted
            if leaf.dtype != dtype or leaf.dim() != len(shape):
                return False
            for extent, have in zip(shape, leaf.shape, strict=True):
                if extent is None:
                    continue
                if isinstance(have, torch.SymInt) or have != extent:
                    return False
        return not self.guards.broken(leaves)

    def is_like(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call differs from the capture in extents alone."""
        try:
            args, kwargs = self.arrange(args, kwargs)
            leaves = pytrees.pytree.tree_leaves((args, dict(kwargs)))
            self._check_numbers(leaves)
        except (PlanMismatchError, TypeError):
            return False
        pairs = zip(leaves, self.tensors, strict=True)
        return all(
            leaf.dtype == wanted[0] and leaf.dim() == len(wanted[1])
            for leaf, wanted in pairs
            if wanted is not None
        )

    def as_captured(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        changed: Sequence[Place],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call as before ``fully_shard`` cast them.

        It casts them together with the parameters.

        Args:
            args: Positional arguments, as at the capture.
            kwargs: Keyword arguments, as at the capture.
            changed: Parameters with another dtype than at the capture.
        """
        if not changed:
            return args, dict(kwargs)
        low = {place.held.dtype for place in changed}
        leaves, structure = pytrees.pytree.tree_flatten((args, dict(kwargs)))
        for number, wanted in enumerate(self.tensors[: len(leaves)]):
            leaf = leaves[number]
            if wanted and isinstance(leaf, torch.Tensor) and leaf.dtype in low:
                leaves[number] = leaf.to(wanted[0])
        return pytrees.pytree.tree_unflatten(leaves, structure)

    def _fits(self, given: tuple[Any, ...]) -> bool:
        """Return whether all arguments are tensors that match the capture.

        This is the fast path of most calls: no nest is flattened, which takes 10 us
            less.
        """
        return len(given) == len(self.tensors) and all(
            wanted is not None
            and isinstance(leaf, torch.Tensor)
            and leaf.dtype == wanted[0]
            and leaf.shape == wanted[1]
            for leaf, wanted in zip(given, self.tensors, strict=True)
        )

    def _check_numbers(self, leaves: Sequence[Any]) -> None:
        """Check the inputs that are no tensors: they are constants of the program."""
        if len(leaves) != len(self.tensors):
            msg = (
                f"called with {len(leaves)} inputs, nested ones counted; the program "
                f"was captured for {len(self.tensors)}; {_OTHERWISE}"
            )
            raise PlanMismatchError(msg)
        for number, (leaf, wanted) in enumerate(zip(leaves, self.tensors, strict=True)):
            given = isinstance(leaf, torch.Tensor)
            unknown = wanted is None and number not in self.numbers
            if unknown or (given and wanted):
                continue
            if given or wanted or not _is_same(leaf, self.numbers[number]):
                have = _tensor_text(leaf) if given else repr(leaf)
                want = "a tensor" if wanted else repr(self.numbers[number])
                msg = (
                    f"input {number} is {have}; the program was captured for {want}, "
                    f"which is part of it; {_OTHERWISE}"
                )
                raise PlanMismatchError(msg)


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of inputs that vary: numbers that were captured as such."""


def _is_same(one: object, other: object) -> bool:
    """Return whether two inputs that are no tensors are the same constant.

    Zeros of different signs are not, and every NaN is the same.
    """
    if isinstance(one, (float, complex)):
        return type(one) is type(other) and repr(one) == repr(other)
    return type(one) is type(other) and bool(one == other)


TRACED_OTHERWISE = (
    "this program was captured for other inputs than those of the call that is being "
    "compiled or exported: another shape, dtype or constant, or an extent that varies "
    "there; convert with dynamic_shapes= for extents that vary, or with args of this "
    "call"
)
"""Message about a call inside of a larger capture."""

_OTHERWISE = "convert with the arguments you mean to use, or without args"


def _tensor_text(leaf: torch.Tensor) -> str:
    return tensor_text(dtype_name(leaf.dtype), tuple(leaf.shape))


def signature_of(model: nn.Module, module: GraphModule) -> Signature:
    """Return the signature of ``module``, a capture of ``model``."""
    names = tuple(
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )
    tensors: list[tuple[torch.dtype, tuple[int | None, ...]] | None] = []
    numbers: dict[int, object] = {}
    devices: list[str | None] = []
    for node in module.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        devices.append(val.device.type if isinstance(val, torch.Tensor) else None)
        if isinstance(val, torch.Tensor):
            shape = tensor_internals.extents(val)
            extents = tuple(d if isinstance(d, int) else None for d in shape)
            tensors.append((val.dtype, extents))
        else:
            if not isinstance(val, _SYMBOLS):
                numbers[len(tensors)] = val
            tensors.append(None)
    args, kwargs = pytrees.call_structure(module.graph).in_spec.children()
    return Signature(
        names,
        args.num_children,
        tuple(kwargs.context),
        tuple(tensors),
        numbers=numbers,
        guards=shape_guards.kept(module),
        devices=tuple(devices),
    )

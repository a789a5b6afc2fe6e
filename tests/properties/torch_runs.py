"""What a run of a torch program leaves behind, and how two runs differ."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from tests.properties.torch_sources import stored

BUFFERS = ("calls", "stored")
"""Of the programs; a converted one may hold copies of weights beside them."""


@dataclass
class Traces:
    """What one or more calls of a module left behind.

    Attributes:
        outputs: What each call gave.
        inputs: The float and integer arguments afterwards.
        buffers: The buffers afterwards.
        random: The state of the random generator afterwards.
        gradients: The gradients of parameters, where a loss was run backwards.
    """

    outputs: list[Any]
    inputs: tuple[torch.Tensor, ...]
    buffers: dict[str, torch.Tensor]
    random: torch.Tensor
    gradients: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


def run(
    module: nn.Module,
    given: tuple[torch.Tensor, ...],
    *,
    backward: bool = False,
    calls: int = 2,
) -> Traces:
    """Call ``module`` a few times on copies of ``given``, from one random state."""
    args = tuple(tensor.clone() for tensor in given)
    torch.manual_seed(7)
    with torch.set_grad_enabled(backward):
        outputs = [module(*args) for _ in range(calls)]
    buffers = {name: module.get_buffer(name) for name in BUFFERS}
    found = Traces(outputs, args, buffers, torch.get_rng_state())
    if backward:
        loss: Any = sum(
            leaf.double().sin().sum()
            for leaf in pytree.tree_leaves(outputs[-1])
            if torch.is_tensor(leaf) and leaf.requires_grad
        )
        if torch.is_tensor(loss):
            loss.backward()
        named = module.named_parameters()
        found.gradients = {n: p.grad.clone() for n, p in named if p.grad is not None}
    return found


def differences(ours: Traces, theirs: Traces, *, aliases: bool = True) -> Iterator[str]:
    """Yield where one run differs from another in anything but rounding.

    Args:
        ours: What is held to the other.
        theirs: What it should be like.
        aliases: Whether the same tensors must share their storage.
    """
    for number, (one, two) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        yield from _of_structure(f"output of call {number}", one, two)
    for number, (one, two) in enumerate(zip(ours.inputs, theirs.inputs, strict=True)):
        yield from _of_leaf(f"argument {number}", one, two)
    for name, held in theirs.buffers.items():
        if not is_stored_low(ours.buffers[name], held):
            yield from _of_leaf(f"buffer {name}", ours.buffers[name], held)
    if not torch.equal(ours.random, theirs.random):
        yield "random state"
    if ours.gradients.keys() != theirs.gradients.keys():
        yield f"gradients of {ours.gradients.keys() ^ theirs.gradients.keys()}"
    if aliases and sharing(ours) != sharing(theirs):
        yield f"aliases {sharing(ours)}, want {sharing(theirs)}"


def is_stored_low(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether ``one`` is the buffer ``two`` rounded, which no program wrote to.

    A conversion for inference stores what is only read low, a buffer like a parameter.
    """
    unwritten = torch.equal(two, stored().to(two.dtype))
    lower = one.dtype.itemsize < two.dtype.itemsize
    return unwritten and lower and torch.equal(one, two.to(one.dtype))


def _of_structure(where: str, one: Any, two: Any) -> Iterator[str]:
    mine, structure = pytree.tree_flatten(one)
    wanted, other = pytree.tree_flatten(two)
    if structure != other:
        yield f"{where}: structure {structure}, want {other}"
        return
    for number, (a, b) in enumerate(zip(mine, wanted, strict=True)):
        yield from _of_leaf(f"{where}, leaf {number}", a, b)


def _of_leaf(where: str, one: Any, two: Any) -> Iterator[str]:
    if not torch.is_tensor(two) or not torch.is_tensor(one):
        if type(one) is not type(two) or one != two:
            yield f"{where}: {one!r}, want {two!r}"
        return
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        yield f"{where}: {one.dtype} {one.shape}, want {two.dtype} {two.shape}"
    elif one.requires_grad != two.requires_grad:
        yield f"{where}: requires_grad {one.requires_grad}"
    elif not one.dtype.is_floating_point and not torch.equal(one, two):
        yield f"{where}: other values {one}, want {two}"


def sharing(found: Traces) -> list[tuple[int, int]]:
    """Return which tensors of a run share their storage, by number."""
    leaves = [leaf for out in found.outputs for leaf in pytree.tree_leaves(out)]
    tensors = [leaf for leaf in leaves if torch.is_tensor(leaf)]
    everything = [*tensors, *found.inputs, *found.buffers.values()]
    places = [tensor.untyped_storage().data_ptr() for tensor in everything]
    return [
        (one, two)
        for one, two in combinations(range(len(places)), 2)
        if places[one] == places[two]
    ]


def floats(found: Traces) -> list[torch.Tensor]:
    """Return the float tensors of a run in one order, gradients last."""
    leaves = [*pytree.tree_leaves(found.outputs), *found.inputs]
    leaves += [*found.buffers.values()]
    leaves += [found.gradients[name] for name in sorted(found.gradients)]
    return [x for x in leaves if torch.is_tensor(x) and x.is_floating_point()]


def error(ours: Traces, theirs: Traces) -> float:
    """Return the largest error of a tensor, relative to what is large in the run."""
    worst = 0.0
    for one, two in zip(floats(ours), floats(theirs), strict=True):
        a, b = one.detach().double(), two.detach().double()
        scale = max(float(b.norm()), 1e-2 * b.numel() ** 0.5)
        off = float((a - b).norm()) / scale
        worst = off if off != off else max(worst, off)  # noqa: PLR0124  # NaN
    return worst

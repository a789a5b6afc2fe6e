"""The forms in which a model is run: what users would use instead, and ours."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import amprewrite
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from benchmarks.zoo import Case

Run = Callable[[], Any]

LOWS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Low dtypes by the policy that has them."""

BASELINES = ("float32", "float32, tf32", "autocast", "cast")
"""What users would use instead."""

OURS = ("promote", "optimal", "tolerance")
"""Conversions: two placements, and the cheapest plan with autocast's error."""

COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda program: program,
    "compiled": torch.compile,
    "max-autotune": lambda program: torch.compile(program, mode="max-autotune"),
    "reduce-overhead": lambda program: torch.compile(program, mode="reduce-overhead"),
}
"""How the forms are compiled."""


def convert(case: Case, policy: str, name: str) -> Any:
    """Return the model converted in one of the ways of :data:`OURS`."""
    model, args, kwargs = case
    given: dict[str, Any] = {"args": args, "kwargs": kwargs}
    if name == "tolerance":
        return amprewrite.convert(model, policy, tolerance="autocast", **given)
    return amprewrite.convert(model, policy, placement=name, **given)


def variant(
    case: Case, policy: str, name: str, compiler: str, *, train: bool = False
) -> tuple[Run, Any]:
    """Return one form of a model as a call without arguments, and its module.

    Args:
        case: The model and its arguments; it is left as it is.
        policy: A key of :data:`LOWS`.
        name: One of :data:`BASELINES` or :data:`OURS`.
        compiler: A key of :data:`COMPILERS`.
        train: Whether the form has parameters of its own, which may be trained.
    """
    model, args, kwargs = case
    module: Any
    low = LOWS[policy]
    if train:
        model = copy.deepcopy(model).train()
    if name in OURS:
        module = convert((model, args, kwargs), policy, name)
    elif name == "cast":
        module = copy.deepcopy(model).to(low)
        args, kwargs = in_dtype(low, (args, kwargs))
    else:
        module = model
    program = COMPILERS[compiler](module)
    device = next(iter(module.parameters())).device.type

    def run() -> Any:
        if name == "autocast":
            with torch.autocast(device, low):
                return program(*args, **kwargs)
        if name == "float32, tf32":
            with tf32():
                return program(*args, **kwargs)
        return program(*args, **kwargs)

    return run, module


def in_dtype(dtype: torch.dtype, value: Any) -> Any:
    """Return a nest whose float tensors have a dtype."""

    def cast(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    return pytree.tree_map(cast, value)


def reference(case: Case) -> Any:
    """Return what the model gives in float64."""
    model, args, kwargs = case
    wide = copy.deepcopy(model).double()
    args, kwargs = in_dtype(torch.float64, (args, kwargs))
    return wide(*args, **kwargs)


@contextmanager
def tf32() -> Iterator[None]:
    """Let float32 contractions use TF32; it is off everywhere else."""
    allow_tf32(on=True)
    try:
        yield
    finally:
        allow_tf32(on=False)


def allow_tf32(*, on: bool) -> None:
    """Let float32 contractions use TF32, or not: references are true float32."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on

"""torch's own samples of every module, run plainly, by autocast and converted.

A run returns each float of the output, and with gradients the one of each parameter and
float input, for the same gradients of the output. Every run has a copy of the module
and of the inputs, and draws the same random numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import torch
from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.compat import pytrees
from tests.oracles.opinfo import no_test_sought, torch_may_warn, with_expecttest

pytree = pytrees.pytree

FLOOR = 2.0**-7
"""Relative error that is no mistake, where autocast computes in float32.

It is that of four roundings to bfloat16, each of at most 2**-9: of both operands of a
product, of the gradient and of the result. Policy bf16 lowers products that autocast
leaves in float32 on CPUs (``bilinear``).
"""

FACTOR = 4.0
"""Largest error relative to that of autocast."""

Tensors = dict[str, torch.Tensor]


def module_db() -> list[Any]:
    """Return torch's list of modules with samples."""
    with_expecttest()
    with torch_may_warn():
        from torch.testing._internal import common_modules
    return common_modules.module_db


def name_of(info: Any) -> str:
    """Return the name of the class, with the variant where there are several."""
    module = info.module_cls.__module__.removeprefix("torch.").replace("modules.", "")
    return f"{module}.{info.module_cls.__name__}".removeprefix("nn.")


@dataclass
class Sample:
    """One module with the arguments of a call.

    Attributes:
        module: The module, in float32.
        args: Positional arguments.
        kwargs: Keyword arguments.
        random: Whether a call draws random numbers.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: bool = field(init=False)

    def __post_init__(self) -> None:
        first, second = (self.plain(seed=seed, gradients=False) for seed in (0, 1))
        self.random = not equal(first, second)

    def plain(
        self, dtype: torch.dtype = torch.float32, *, seed: int = 0, gradients: bool
    ) -> Tensors:
        """Run the module itself."""
        module = deepcopy(self.module).to(dtype)
        args, kwargs = self.arguments(dtype, gradients=gradients)
        with without_fast_path():
            return outcome(module, args, kwargs, seed=seed, gradients=gradients)

    def by_autocast(self, *, gradients: bool) -> Tensors:
        """Run the module by torch.autocast, in bfloat16.

        oneDNN has kernels of some modules (LSTM) for CPUs with bfloat16 instructions
        alone; elsewhere it raises, and the module runs by torch's own kernels.
        """
        try:
            return self._by_autocast(gradients=gradients)
        except RuntimeError:
            with torch.backends.mkldnn.flags(enabled=False):
                return self._by_autocast(gradients=gradients)

    def _by_autocast(self, *, gradients: bool) -> Tensors:
        module = deepcopy(self.module)
        args, kwargs = self.arguments(gradients=gradients)
        cast = torch.autocast("cpu", torch.bfloat16)
        return outcome(module, args, kwargs, gradients=gradients, around=cast)

    def converted(self, policy: str, *, lazy: bool, gradients: bool) -> Tensors:
        """Run the converted module; captured before the call, unless ``lazy``."""
        module = deepcopy(self.module)
        args, kwargs = self.arguments(gradients=gradients)
        known: dict[str, Any] = {}
        if not lazy:
            known = dict(zip(("args", "kwargs"), (args, kwargs), strict=True))
        program = amprewrite.convert(module, policy, training=gradients, **known)
        return outcome(program, args, kwargs, gradients=gradients, of=module)

    def arguments(
        self, dtype: torch.dtype = torch.float32, *, gradients: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments, which require gradients if asked for."""

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            leaf = leaf.detach().clone()
            if leaf.dtype != torch.float32:
                return leaf
            return leaf.to(dtype)

        def learning(leaf: Any, copy: Any) -> Any:
            return copy.requires_grad_(gradients) if learns(leaf) else copy

        originals, untyped = (self.args, self.kwargs), cast("Any", pytree)
        return untyped.tree_map(
            learning, originals, untyped.tree_map(copied, originals)
        )


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run attention by its ops, as captured programs do.

    Layers of transformers have a kernel of their own for inference in eager code, of
    other roundings (``torch.backends.mha``).
    """
    backend: Any = torch.backends.mha
    before = backend.get_fastpath_enabled()
    backend.set_fastpath_enabled(False)
    try:
        yield
    finally:
        backend.set_fastpath_enabled(before)


def samples(info: Any, *, training: bool, count: int) -> Iterator[Sample]:
    """Yield the first samples of a module."""
    torch.manual_seed(0)
    with no_test_sought(), torch_may_warn():
        drawn = info.module_inputs_func(
            info,
            device="cpu",
            dtype=torch.float32,
            requires_grad=True,
            training=training,
        )
        for inputs in islice(drawn, count):
            creation, call = inputs.constructor_input, inputs.forward_input
            torch.manual_seed(0)
            module = info.module_cls(*creation.args, **creation.kwargs)
            module = module.to(torch.float32).train(training)  # some have float64
            args, kwargs = tuple(call.args), dict(call.kwargs)
            if any(nn.parameter.is_lazy(p) for p in module.parameters()):
                with torch.no_grad():
                    module(*args, **kwargs)  # it learns its shapes
            yield Sample(module, args, kwargs)


def outcome(
    run: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    gradients: bool,
    seed: int = 0,
    around: Any = None,
    of: nn.Module | None = None,
) -> Tensors:
    """Return the outputs of a call, and its gradients, by name."""
    torch.manual_seed(seed)
    with torch_may_warn(), torch.set_grad_enabled(gradients):
        if around is None:
            output = run(*args, **kwargs)
        else:
            with around:
                output = run(*args, **kwargs)
    leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
    values = {f"output {index}": leaf.detach() for index, leaf in enumerate(leaves)}
    learnt = [leaf for leaf in leaves if leaf.requires_grad]
    if not gradients or not learnt:
        return values
    upstream = [drawn_like(leaf, index) for index, leaf in enumerate(learnt)]
    with torch_may_warn():
        torch.autograd.backward(learnt, upstream)
    inputs = [x for x in pytree.tree_leaves((args, kwargs)) if learns(x)]
    named = [(f"argument {index}", leaf) for index, leaf in enumerate(inputs)]
    for name, leaf in (*named, *(of or run).named_parameters()):
        if leaf.grad is not None:
            values[f"gradient of {name}"] = leaf.grad.detach()
    return values


def learns(leaf: Any) -> bool:
    """Return whether an argument requires a gradient."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def drawn_like(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a gradient for an output, the same for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(leaf.shape, generator=generator).to(leaf.dtype)


def equal(left: Tensors, right: Tensors) -> bool:
    """Return whether two runs gave the same bits, dtypes and names."""
    return left.keys() == right.keys() and all(
        value.dtype == right[name].dtype
        and torch.allclose(value, right[name], rtol=0, atol=0, equal_nan=True)
        for name, value in left.items()
    )


def too_far(exact: Tensors, autocast: Tensors, actual: Tensors) -> Iterator[str]:
    """Yield the values of a run that are further off than autocast's by the factor.

    A gradient is measured relative to the largest one: that of a bias before a
    normalisation is the rounding error of zero.
    """
    if exact.keys() != actual.keys():
        yield f"found {sorted(actual)}, want {sorted(exact)}"
        return
    sizes = {name: float(value.double().norm()) for name, value in exact.items()}
    of_gradients = [size for name, size in sizes.items() if name.startswith("grad")]
    for name, value in exact.items():
        if not value.is_floating_point():
            continue
        is_gradient = name.startswith("grad")
        size = max(of_gradients) if is_gradient else sizes[name]
        error, theirs = (
            float((run[name].double() - value.double()).norm())
            if name in run
            else float("inf")
            for run in (actual, autocast)
        )
        bound = FACTOR * theirs + FLOOR * size
        if not error <= bound and sizes[name] == sizes[name]:
            yield f"{name}: error {error:.2e}, want {bound:.2e} (autocast {theirs:.2e})"

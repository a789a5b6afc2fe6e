"""Products in 16 bits on a processor without instructions for them.

Its kernels emulate them, and take many times as long as those of float32: BERT-base
took 17 s in bfloat16 and 2.3 s in float32 (torch 2.13, AVX2). So ``verify`` computes a
product once where several runs need it, and in float32 where its rounding counts and
not its kernel.

The result of a product alone needs no run of its kernel: it has run in the converted
program. There it is compared with the op of the original on the same operands; where it
is right, its result on other operands is that of the original in float32, rounded once.
"""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.tracing import ProductMode
from amprewrite.frameworks.torch_fx.probes.kernel_rounding import SAMPLES, Kernels
from amprewrite.frameworks.torch_fx.probes.runner import fits_float32
from amprewrite.measure.timing import bfloat16_instructions

_aten = torch.ops.aten

PRODUCTS: Mapping[object, str] = {
    _aten.mm.default: "matmul",
    _aten.addmm.default: "addmm",
    _aten.bmm.default: "baddbmm",
    _aten.baddbmm.default: "baddbmm",
    _aten.convolution.default: "conv",
}
"""Operators that multiply matrices, each with the sample that its kernel is tested by.

See :data:`amprewrite.frameworks.torch_fx.probes.kernel_rounding.SAMPLES`.
"""

LOW = (torch.bfloat16, torch.float16)
"""Dtypes that are emulated: of products in 8 bits there are no kernels on CPUs."""

SMALL = 2**15
"""Number of elements of operands below which a product runs as it is.

The copies and the tests take as long then as the product.
"""

BYTES = 4
"""Bytes of a number in float32."""

ALIGNED = 64
"""Bytes of a cache line: kernels may depend on the place of an operand in it."""


@cache
def is_emulated(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether products of a dtype are emulated; False if that is unknown.

    Processors with instructions for float16 have those for bfloat16.
    """
    if dtype not in LOW or device.type != "cpu":
        return False
    return bfloat16_instructions()[0] is False


def is_emulated_product(operands: Any) -> bool:
    """Return whether a product of these operands is emulated, and not small."""
    held = [x for x in pytree.tree_leaves(operands) if isinstance(x, torch.Tensor)]
    if sum(tensor.numel() for tensor in held) < SMALL:
        return False
    return all(is_emulated(tensor.dtype, tensor.device) for tensor in held)


@cache
def kernels(dtype: torch.dtype) -> Kernels:
    """Return the tests of kernels in a dtype."""
    return Kernels(dtype)


def rounds_once(canonical: str, dtype: torch.dtype) -> bool:
    """Return whether the emulation of a product rounds its sum once.

    Args:
        canonical: Name of a sample.
        dtype: The low dtype.
    """
    return not kernels(dtype).contraction_rounds_inside(canonical, torch.device("cpu"))


@dataclass
class Products:
    """Results of products by the bits of their operands, to be computed once.

    The kernel of a product is a function of its operands, with their strides and
    alignment: where those are the same, so are the bits of its result.

    Attributes:
        weights: Number of elements of the weights. As many bytes are kept as a forward
            pass in float32 takes: for them, the operand and the result of a product.
        results: The results, by operator and operands.
        bytes: Size of the results; what is larger than that limit is not kept.
        largest: Number of elements of the largest result until now.
    """

    weights: int
    results: dict[Hashable, torch.Tensor] = field(
        default_factory=dict[Hashable, torch.Tensor]
    )
    bytes: int = 0
    largest: int = 0

    @property
    def capacity(self) -> int:
        """Limit on the bytes of the results."""
        return BYTES * (self.weights + 2 * self.largest)

    @contextmanager
    def once(self) -> Generator[None]:
        """Compute the emulated products in the context once."""
        with _Once(self):
            yield

    def result(self, run: Callable[[], torch.Tensor], key: Hashable) -> torch.Tensor:
        """Return the result of a product, which the caller may write to."""
        held = self.results.get(key)
        if held is not None:
            return held.clone()
        made = run()
        self.largest = max(self.largest, made.numel())
        size = made.numel() * made.element_size()
        if self.bytes + size <= self.capacity:
            self.results[key] = made.clone()
            self.bytes += size
        return made


_products: ContextVar[Products | None] = ContextVar("products", default=None)


@contextmanager
def sharing(weights: int) -> Generator[None]:
    """Share the results of products among the runs in the context.

    Args:
        weights: Number of elements of the weights; see :class:`Products`.
    """
    token = _products.set(Products(weights))
    try:
        yield
    finally:
        _products.reset(token)


def current_products() -> Products | None:
    """Return the results that are shared here; None if none are."""
    return _products.get()


def shared() -> AbstractContextManager[None]:
    """Compute products once in the context, if their results are shared here."""
    products = _products.get()
    return nullcontext() if products is None else products.once()


class _Once(ProductMode):
    """Mode that asks for the result of each emulated product."""

    def __init__(self, products: Products) -> None:
        above: Any = super()
        above.__init__()
        self.products = products

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        given: dict[str, Any] = kwargs or {}
        if func not in PRODUCTS or not is_emulated_product((args, given)):
            return func(*args, **given)
        leaves, _ = pytree.tree_flatten((args, given))
        key = func, *map(_bits, leaves)
        return self.products.result(lambda: func(*args, **given), key)


class InFloat32(ProductMode):
    """Mode of emulated products in float32, with results that are rounded once.

    So are those of the emulation, in another order of the sum. Others run as they are.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one operator."""
        del types
        given: dict[str, Any] = kwargs or {}
        sample = PRODUCTS.get(func)
        if sample is None or not is_emulated_product((args, given)):
            return func(*args, **given)
        leaves = pytree.tree_leaves((args, given))
        low = next(x.dtype for x in leaves if isinstance(x, torch.Tensor))
        if not rounds_once(sample, low):
            return func(*args, **given)
        wide_args, wide_given = pytree.tree_map(_widened, (args, given))
        return func(*wide_args, **wide_given).to(low)


def _widened(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) else leaf


def _bits(leaf: Any) -> Hashable:
    """Return the key of one operand: all that a kernel may depend on.

    Python's hash of bytes has 64 bits (SipHash): two operands of other bits have one
    hash by chance in 1 of 2**64 cases.
    """
    if not isinstance(leaf, torch.Tensor):
        return str(leaf)
    held = leaf.detach()
    # Dense, in the order of its memory: a transposed operand is not copied.
    order = sorted(range(held.ndim), key=held.stride, reverse=True)
    flat = held.permute(order).contiguous().reshape(-1).view(torch.int16)
    place = held.data_ptr() % ALIGNED
    bits = hash(flat.numpy().tobytes())
    return held.dtype, tuple(held.shape), held.stride(), place, bits


def is_known(canonical: str, exact: object, read: object) -> bool:
    """Return whether the kernel of a product is emulated, and rounds its sum once.

    Args:
        canonical: Canonical name of the op.
        exact: Operands of the original's op, with tensors at any depth.
        read: The same operands in the converted program.
    """
    if canonical not in SAMPLES or not is_emulated_product(read):
        return False
    tensors = (x for x in pytree.tree_leaves(read) if isinstance(x, torch.Tensor))
    dtypes = {tensor.dtype for tensor in tensors}
    if not fits_float32(exact, read) or len(dtypes) != 1:
        return False
    return rounds_once(canonical, *dtypes)


def rounded_alone(
    actual: Sequence[torch.Tensor],
    checked: Sequence[torch.Tensor] | None,
    same: Sequence[torch.Tensor] | None,
) -> list[torch.Tensor] | None:
    """Return the results of a converted product alone.

    Args:
        actual: Its results in the converted program.
        checked: The original's in float32, on the same operands.
        same: The original's in float32, on the operands of the product alone.

    Returns:
        None if it has to be run: in the program it was off by more than a rounding, or
        there is nothing to compare.
    """
    if checked is None or same is None or not len(actual) == len(checked) == len(same):
        return None
    if not all(map(_is_rounded, actual, checked)):
        return None
    return [one.to(found.dtype) for one, found in zip(same, actual, strict=True)]


def _is_rounded(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether a result is within a unit roundoff, in the Euclidean norm."""
    if found.shape != exact.shape or found.dtype.itemsize != 2:  # noqa: PLR2004  # bytes
        return False
    linalg: Any = torch.linalg
    unit = torch.finfo(found.dtype).eps / 2
    size = float(linalg.vector_norm(exact))
    return float(linalg.vector_norm(found - exact)) <= unit * size < inf

"""torch's own samples of every operator, as programs that torch.export captures."""

import sys
import unittest
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from amprewrite.frameworks.torch_fx.compat import pytrees

pytree = pytrees.pytree

LOW = "amptest.low.default"
"""An identity that a rule can lower: what passes it is low, whatever its shape."""

RULES = ({"native": LOW, "class": "allow"},)

UNINITIALISED = ("empty", "new_empty", "resize")
"""Beginnings of the names of ops whose result holds whatever the memory held."""

_rounding: Iterator[torch.dtype] = iter(())


@torch.library.custom_op("amptest::low", mutates_args=())
def low(x: Tensor) -> Tensor:
    """Return a copy of ``x``; inside :func:`rounding`, one that was rounded."""
    dtype = next(_rounding, x.dtype)
    return x.to(dtype).to(x.dtype) if dtype != x.dtype else x.clone()


@low.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@contextmanager
def rounding(dtypes: Iterator[torch.dtype]) -> Iterator[None]:
    """Let the identity round, at its n-th call, to the n-th of ``dtypes``."""
    global _rounding  # noqa: PLW0603  # an operator has no other state
    _rounding = dtypes
    try:
        yield
    finally:
        _rounding = iter(())


@contextmanager
def torch_may_warn() -> Iterator[None]:
    """Ignore warnings: the samples call deprecated and experimental operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def with_expecttest() -> None:
    """Let torch's own tests be imported without the package expecttest.

    They need it for the base of a class of tests that is not used here; where it is
    missing an empty class stands for it.
    """
    if "expecttest" not in sys.modules:
        stub: Any = ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub


def op_db() -> list[Any]:
    """Return torch's list of operators with samples."""
    with_expecttest()
    with torch_may_warn():
        from torch.testing._internal import common_methods_invocations
    return common_methods_invocations.op_db


@contextmanager
def no_test_sought() -> Iterator[None]:
    """Let torch's samples not look in the stack for the test that draws them.

    The look keeps all frames of the stack alive, an open generator among them.
    """
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    with (
        mock.patch.object(common_utils, "extract_test_fn", return_value=None),
        mock.patch.object(core, "extract_test_fn", return_value=None),
    ):
        yield


def name_of(info: Any) -> str:
    """Return the name of an entry, with that of its variant."""
    return f"{info.name}.{info.variant_test_name}".rstrip(".")


class Program(nn.Module):
    """One call of an operator.

    Args:
        info: Entry of :func:`op_db`.
        sample: Its sample.
        lowered: Which float32 tensors are low: ``none``; ``first``, the first argument
            and the results; ``all``, the arguments and the results.
    """

    def __init__(self, info: Any, sample: Any, lowered: str = "none") -> None:
        super().__init__()
        self.info, self.op, self.lowered = info, info.op, lowered
        call = (sample.input, sample.args, sample.kwargs)
        self.leaves, self.spec = pytree.tree_flatten(call)

    @property
    def args(self) -> tuple[Tensor, ...]:
        """The tensors of the sample, copied: some operators write to them."""
        return tuple(x.clone() for x in self.leaves if isinstance(x, Tensor))

    def forward(self, *tensors: Tensor) -> Any:
        """Call the operator."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, Tensor) else x for x in self.leaves]
        count = {"none": 0, "first": 1, "all": len(leaves)}[self.lowered]
        for index, leaf in enumerate(leaves):
            if count and is_full(leaf):
                leaves[index], count = torch.ops.amptest.low(leaf), count - 1
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.op(first, *args, **kwargs)
        if self.lowered == "none":
            return result
        return pytree.tree_map(
            lambda x: torch.ops.amptest.low(x) if is_full(x) else x, result
        )


def is_full(value: object) -> bool:
    """Return whether ``value`` is a tensor of the full dtype."""
    return isinstance(value, Tensor) and value.dtype == torch.float32


def samples_of(info: Any, count: int) -> list[Any]:
    """Return the first samples of an entry; none if it knows no float32.

    The others are not drawn: torch is seeded anew for each. The generator is closed
    here, as the only reference to it ends: one that is left open is closed while
    something is traced, and leaves its own ``no_grad`` in the trace.
    """
    if torch.float32 not in info.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    with torch_may_warn(), no_test_sought():
        drawn = info.sample_inputs("cpu", torch.float32, requires_grad=False)
        return list(islice(drawn, count))


def export(program: Program) -> Any:
    """Return the exported program; None if torch.export cannot capture it."""
    with torch_may_warn():
        try:
            return torch.export.export(program, program.args, strict=False)
        except Exception:  # noqa: BLE001  # data-dependent ops fail in many ways
            return None


def fake_mode() -> Any:
    """Return a mode in which tensors have a device and a dtype, and no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: TID251

    return FakeTensorMode()

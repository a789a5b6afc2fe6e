"""Roundings inside kernels, measured by running them in low precision.

A low contraction sums in full and rounds its result once, and so do pointwise kernels.
Ops that torch composes of others also round the values between those, and recurrent
layers the values between steps: the error of their results is that of the kernel. It
depends on the device, its instructions and the version of torch, so nothing is assumed:
the error of an op that may round inside is measured on its operands in the model, and
for a contraction, a sample shows first whether it rounds inside.

The table of ops lists the ops that may round inside (``rounds_inside``).
Source: torch 2.13 on a CPU in bfloat16, on torch's own samples (``op_db``, as far as
names match) and on a few of ours: the error of these is 1.2 to 3.1 times that of
rounding their exact results with the instructions AVX2, and on others some round once
(``conv_transpose`` with avx512_bf16), which the measurement on the model's own operands
finds. ``rnn_relu``, the cells of plain recurrent layers and ``chain_matmul`` were not
measured, but taken to be as their kin. Left out: division with a rounding mode, which
jumps; an embedding that renormalises its table (1.4); and a fused attention whose
weights are nearly 0 and 1 (up to 2; predictions were no better).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.ir import Op

Sample = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]
"""A contraction and the shapes of its operands."""

SAMPLES: Mapping[str, Sample] = {
    "addmm": (torch.addmm, ((16,), (16, 256), (256, 16))),
    "baddbmm": (torch.baddbmm, ((4, 16, 16), (4, 16, 256), (4, 256, 16))),
    "conv": (functional.conv2d, ((2, 32, 8, 8), (8, 32, 3, 3))),
    "linear": (functional.linear, ((16, 256), (16, 256))),
    "matmul": (torch.matmul, ((16, 256), (256, 16))),
    "mv": (torch.mv, ((16, 256), (256,))),
}
"""Contractions that are measured in a model if this sample rounds inside.

They rounded once in all tests (torch 2.13, CPUs with SSE4.1 to AVX2). A GPU that is
allowed to add in low precision (``torch.backends.cuda.matmul``) does not.
"""

ONCE = 1.1
"""Largest error of a kernel that rounds once, relative to rounding the exact result.

Kernels that round once were at 1.00 on the samples, the others at 1.2 and more.
"""


@dataclass
class Kernels:
    """Record of the ops that round inside, on the devices of a program.

    Attributes:
        low: The low dtype.
        samples: Results for contractions, by canonical name and device.
    """

    low: torch.dtype
    samples: dict[tuple[str, torch.device], bool] = field(
        default_factory=dict[tuple[str, torch.device], bool]
    )

    def round_inside(self, op: Op, operands: Any) -> bool:
        """Return whether a low kernel of ``op`` may round more than its results.

        Args:
            op: The op.
            operands: Its operands, with tensors at any depth.
        """
        if op.traits.rounds_inside:
            return len(op.operands) >= op.traits.rounds_inside_from
        leaves = pytree.tree_leaves(operands)
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        first = next(tensors, None)
        if op.canonical not in SAMPLES or first is None:
            return False
        return self.contraction_rounds_inside(op.canonical, first.device)

    def contraction_rounds_inside(self, canonical: str, device: torch.device) -> bool:
        """Return whether a contraction of :data:`SAMPLES` rounds more than its results.

        Args:
            canonical: Its canonical name.
            device: The device.
        """
        key = canonical, device
        if key not in self.samples:
            self.samples[key] = self._sampled(*SAMPLES[canonical], device)
        return self.samples[key]

    def _sampled(
        self,
        run: Callable[..., torch.Tensor],
        shapes: tuple[tuple[int, ...], ...],
        device: torch.device,
    ) -> bool:
        draws = torch.Generator().manual_seed(0)
        drawn = (torch.randn(shape, generator=draws) for shape in shapes)
        lows = [x.to(device, self.low) for x in drawn]
        with torch.no_grad():
            exact = run(*(x.float() for x in lows))
            try:
                made = run(*lows)
            except RuntimeError:  # no such kernel, as for float8: nothing runs so
                return False
        rounding = exact.to(self.low).float() - exact
        return _square(made.float() - exact) > ONCE**2 * _square(rounding)


def _square(error: torch.Tensor) -> float:
    return float((error.double() ** 2).sum())


def kernel_error(
    run: Callable[[Any], Any],
    operands: Any,
    full: torch.dtype,
    low: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    """Return the errors of an op's low results against those in full precision.

    Both read the same rounded operands: the errors of those are not included.

    Args:
        run: Calls the op with operands.
        operands: Its operands, with tensors at any depth.
        full: The full dtype; other tensors are left as they are.
        low: Casts a tensor to the low dtype.

    Returns:
        The results' structure with an error for each float, in ``full``; None if the
        op draws random numbers, which a low kernel may draw differently.
    """
    leaves = pytree.tree_leaves(operands)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})

    def each(structure: Any, change: Callable[[Any], Any]) -> Any:
        def changed(leaf: Any) -> Any:
            is_full = isinstance(leaf, torch.Tensor) and leaf.dtype == full
            return change(leaf.detach()) if is_full else leaf

        return pytree.tree_map(changed, structure)

    with torch.no_grad(), fork_rng(devices):
        before = _states(devices)
        exact = run(each(operands, lambda t: low(t).to(full)))
        drawn = zip(before, _states(devices), strict=True)
        if not all(torch.equal(one, two) for one, two in drawn):
            return None
        made = iter(pytree.tree_leaves(run(each(operands, low))))
    return pytree.tree_map(lambda wanted: _difference(next(made), wanted), exact)


def _states(devices: Sequence[int]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _difference(found: Any, wanted: Any) -> Any:
    """Return the error of a result; 0 where the full result is not finite."""
    if isinstance(wanted, torch.Tensor) and wanted.is_floating_point():
        return torch.where(wanted.isfinite(), found.to(wanted.dtype) - wanted, 0)
    return wanted

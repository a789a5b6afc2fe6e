"""Products of 8-bit floats: whether the device has them, their speed and error."""

from typing import Any

import torch

from benchmarks.gpu import meters
from benchmarks.gpu.table import Table

WHAT = (
    "seconds of one product by torch._scaled_mm (e4m3fn operands, one scale each) and "
    "by bfloat16, and relative L2 error against float64"
)

SHAPES = ((4096, 4096, 4096), (16384, 4096, 4096), (512, 4096, 4096))
"""Rows, contracted length, columns."""

HOPPER = (8, 9)
"""Least compute capability with 8-bit products (Ada; Hopper is 9.0)."""


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``; a device without such products says so in one row."""
    for shape in ((32, 32, 32),) if tiny else SHAPES:
        label = "x".join(map(str, shape))
        table.row(label, lambda s=shape: _row(s, device))


def _row(shape: tuple[int, int, int], device: str) -> dict[str, Any]:
    if device != "cuda" or torch.cuda.get_device_capability() < HOPPER:
        return {"missing": f"no 8-bit products on this device ({device})"}
    rows, length, columns = shape
    x = torch.randn(rows, length, device=device)
    w = torch.randn(columns, length, device=device) * length**-0.5
    x8, w8 = (t.clamp(-448, 448).to(torch.float8_e4m3fn) for t in (x, w))
    one = torch.ones((), device=device)
    xb, wb = x.bfloat16(), w.bfloat16()

    functions: Any = torch  # whose name for this product is not public
    product = functions._scaled_mm  # noqa: SLF001

    def low8() -> Any:
        return product(x8, w8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def bf16() -> Any:
        return xb @ wb.t()

    exact = x.double() @ w.double().t()
    times = meters.seconds({"e4m3fn": low8, "bf16": bf16}, 10)
    errors = {
        name: float((run().double() - exact).norm() / exact.norm())
        for name, run in (("e4m3fn", low8), ("bf16", bf16))
    }
    return {"seconds": times, "error": errors}

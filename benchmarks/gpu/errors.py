"""Errors of the zoo against float64 on the device: both policies, all placements.

Beside the conversions run torch.autocast and the model cast as a whole; what is
compared is the relative L2 error over all float outputs.
"""

import gc
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.gpu import models
from benchmarks.gpu.table import Table
from benchmarks.gpu.variants import LOWS, OURS, allow_tf32, reference, variant
from tests.torch_programs import relative_error

WHAT = (
    "relative L2 error over all float outputs against float64, weights of unit gain; "
    "ratio: to autocast's in the same row"
)

COMPILED = ("bert", "gpt2", "llama", "resnet", "unet", "vit")
"""Models that are compiled too: each takes about a minute."""


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``: eager conversions of every model first, compiled ones then."""
    allow_tf32(on=False)
    names = ("bert",) if tiny else tuple(sorted(zoo.ZOO.keys() - zoo.PRETRAINED))
    for policy in LOWS:
        for name in names:
            table.row(
                f"{name}, {policy}",
                lambda n=name, p=policy: _row(n, p, device, "eager", OURS),
                needs=5,
            )
    for policy in () if tiny else LOWS:  # the step "speed" rehearses compiled forms
        for name in COMPILED:
            table.row(
                f"{name}, {policy}, compiled",
                lambda n=name, p=policy: _row(n, p, device, "compiled", OURS[:1]),
                needs=60,
            )


def _row(
    name: str, policy: str, device: str, compiler: str, ours: tuple[str, ...]
) -> dict[str, Any]:
    """Return the error of every form of a model, and its ratio to autocast's."""
    torch.compiler.reset()
    model, args, kwargs = zoo.build(name, zoo.TINY, 2, 16)
    args, kwargs = models.on(device, (args, kwargs))
    case = model.to(device), args, kwargs
    row: dict[str, Any] = {"reference": "float64"}
    with torch.no_grad():
        try:
            expected = reference(case)
        except (RuntimeError, ValueError) as error:
            row["reference"] = f"float32: {str(error).splitlines()[0]}"
            expected = case[0](*case[1], **case[2])
        for form in ("autocast", "cast", *ours):
            try:
                run, module = variant(case, policy, form, compiler)
                row[form] = relative_error(run(), expected)
            except Exception as error:  # noqa: BLE001  # a form that fails is a result
                row[form] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            if form in ours:
                row[f"{form}, casts"] = len(module.plan.runtime_casts)
                row[f"{form}, low ops"] = len(module.plan.lowered)
    theirs = row["autocast"]
    row["ratio"] = {
        form: row[form] / theirs
        for form in ours
        if isinstance(row[form], float) and isinstance(theirs, float) and theirs > 0
    }
    gc.collect()
    return row

"""Prices measured on the device, and plans that are made by them."""

import os
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

import amprewrite
from amprewrite.api import calibrate
from amprewrite.registry import framework_of
from benchmarks.gpu import meters, models
from benchmarks.gpu.table import Table

if TYPE_CHECKING:
    from benchmarks.gpu.variants import Run

WHAT = (
    "what `amprewrite calibrate` measures on the device, and seconds of plans made by "
    "default and by measured prices and by timing, beside float32 and placement promote"
)

MODELS = ("bert-base", "gpt2", "resnet-50")


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``: the calibration first, in a folder of its own."""
    if tiny:  # a calibration of a processor takes minutes at any size
        framework = framework_of(torch.nn.Linear(2, 2))
        found = framework.device_named(device)
        table.row("device", lambda: asdict(found))
        return
    before = os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            default = {name: _plan_of(name, device) for name in MODELS}
            table.row("calibration", _calibrate)
            for name in MODELS:
                table.row(name, lambda n=name: _row(n, default[n], device), needs=80)
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def _calibrate() -> dict[str, Any]:
    return {name: asdict(part) for name, part in calibrate().items()}


def _plan_of(name: str, device: str) -> Any:
    model, args, kwargs = models.case(name, device, batch=None, tiny=False)
    return amprewrite.inspect(model, placement="optimal", args=args, kwargs=kwargs)


def _row(name: str, default: Any, device: str) -> dict[str, Any]:
    case = models.case(name, device, batch=None, tiny=False)
    model, args, kwargs = case
    given: dict[str, Any] = {"args": args, "kwargs": kwargs}
    forms = {
        "float32": model,
        "promote": amprewrite.convert(model, **given),
        "optimal, default prices": amprewrite.convert(model, plan=default, **given),
        "optimal, measured prices": amprewrite.convert(
            model, placement="optimal", **given
        ),
        "fastest": amprewrite.convert(model, placement="fastest", **given),
    }
    with torch.no_grad():
        runs: dict[str, Run] = {
            form: (lambda module=module: module(*args, **kwargs))
            for form, module in forms.items()
        }
        found = meters.seconds(runs, 10)
    return {
        form: {
            "seconds": times,
            "casts": len(forms[form].plan.runtime_casts) if form != "float32" else 0,
            **({"chosen": _chosen(forms[form])} if form == "fastest" else {}),
        }
        for form, times in found.items()
    }


def _chosen(converted: Any) -> str:
    names = (one.name for one in converted.plan.timed)
    return next(names, "by prices: out of memory")

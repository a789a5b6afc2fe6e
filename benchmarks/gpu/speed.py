"""Time, memory and kernels of inference at a full card and at batch 1."""

import gc
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu import meters, models
from benchmarks.gpu.table import Table
from benchmarks.gpu.variants import BASELINES, Run, allow_tf32, variant
from benchmarks.zoo import Case

WHAT = (
    "seconds of a call (median, least, most of interleaved rounds), bytes beside the "
    "parameters at the peak, kernels launched and conversions of a call; ratio: "
    "autocast's median over the form's, above 1 is faster"
)

FORMS = (*BASELINES, "promote", "tolerance")
"""What is timed eagerly; ``tolerance`` where its search is short enough."""

COMPILED = ("float32", "autocast", "cast", "promote")

AUTOTUNED = ("bert-base", "resnet-50")
"""Models that are compiled with max-autotune too: minutes each."""

ROUNDS = 15


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``: bfloat16 eagerly for all models, then compiled, then float16."""
    allow_tf32(on=False)
    names = ("bert-base", "resnet-50") if tiny else tuple(models.MODELS)
    batches = (None,) if tiny else (None, 1)

    def rows(policy: str, compiler: str, forms: tuple[str, ...], needs: float) -> None:
        chosen = AUTOTUNED if compiler == "max-autotune" else names
        usual = (policy, compiler) == ("bf16", "eager")
        for name in chosen if usual or not tiny else chosen[:1]:
            for batch in batches:
                table.row(
                    f"{name}, {policy}, {compiler}, batch {batch or 'full'}",
                    Timed(name, batch, policy, compiler, forms, device, tiny).row,
                    needs=0 if tiny else needs,
                )

    rows("bf16", "eager", FORMS, 30)
    rows("bf16", "compiled", ("autocast", "promote") if tiny else COMPILED, 120)
    rows("fp16", "eager", ("float32", "autocast", "cast", "promote"), 30)
    if not tiny:
        rows("bf16", "reduce-overhead", COMPILED[1:], 120)
        rows("bf16", "max-autotune", COMPILED[1:], 240)


@dataclass(frozen=True)
class Timed:
    """One model in all its forms.

    Attributes:
        name: A key of ``models.MODELS``.
        batch: Its batch; None for what fills the card.
        policy: The low dtype's policy.
        compiler: How the forms are compiled.
        forms: The forms.
        device: Where they run.
        tiny: Whether this is a rehearsal.
    """

    name: str
    batch: int | None
    policy: str
    compiler: str
    forms: tuple[str, ...]
    device: str
    tiny: bool

    def row(self) -> dict[str, Any]:
        """Return memory and kernels of each form, and times taken in turns."""
        torch.compiler.reset()
        case = models.case(self.name, self.device, batch=self.batch, tiny=self.tiny)
        row: dict[str, Any] = {"policy": self.policy, "shapes": _shapes(case)}
        runs: dict[str, Run] = {}
        with torch.no_grad():
            for form in self.forms:
                try:
                    runs[form], row[form] = self._form(case, form)
                except Exception as error:  # noqa: BLE001  # a form that fails is a result
                    failed = f"{type(error).__name__}: {str(error)[:300]}"
                    row[form] = {"failed": failed}
            found = meters.seconds(runs, 2 if self.tiny else ROUNDS)
        for form, times in found.items():
            row[form]["seconds"] = times
        if "autocast" in found:
            theirs = found["autocast"]["median"]
            row["ratio"] = {form: theirs / t["median"] for form, t in found.items()}
        _free()
        return row

    def _form(self, case: Case, form: str) -> tuple[Run, dict[str, Any]]:
        run, module = variant(case, self.policy, form, self.compiler)
        for _ in range(2):  # compiled, and its memory kept
            run()
        return run, {
            "peak bytes": meters.peak_bytes(run),
            "parameter bytes": meters.parameter_bytes(module),
            **meters.kernels(run),
        }


def _shapes(case: Case) -> list[list[int]]:
    _, args, kwargs = case
    given = (*args, *kwargs.values())
    return [list(value.shape) for value in given if isinstance(value, torch.Tensor)]


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

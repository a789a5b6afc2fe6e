"""Time of a conversion from end to end, against torch.export's own time.

A conversion is an export, and all that this package does beside: its modes around the
trace, opening the program, reading, planning, writing, copies of the weights, and the
module of the user's class. The copies take as long as the weights are large: the time
of a cast of every parameter is given beside.

    python -m benchmarks.conversion --out benchmarks/results/conversion.json
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import amprewrite
from benchmarks import zoo

DEPTHS = (2, 10, 50, 200)
"""Layers of the Llama by which linearity is judged."""


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()  # garbage of the run before is not counted
    start = time.thread_time()
    result = run()
    return time.thread_time() - start, result


def _casts(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().bfloat16() for p in model.parameters()]


def measure(case: zoo.Case, rounds: int) -> dict[str, float]:
    """Return median seconds of export, of the conversion, and what it adds."""
    model, args, kwargs = case
    export, convert, casts, ops = [], [], [], 0
    for _ in range(rounds):
        seconds, _ = _seconds(
            lambda: torch.export.export(model, args, kwargs, strict=False)
        )
        export.append(seconds)
        seconds, converted = _seconds(
            lambda: amprewrite.convert(model, args=args, kwargs=kwargs)
        )
        convert.append(seconds)
        ops = len(converted.plan.decisions)
        casts.append(_seconds(lambda: _casts(model))[0])
    whole, ours, copies = map(statistics.median, (export, convert, casts))
    rest = ours - whole
    return {
        "export": whole,
        "convert": ours,
        "cast of all parameters": copies,
        "rest / export": rest / whole,
        "rest without that cast / export": (rest - copies) / whole,
        "ops": ops,
        "rest per op": rest / ops,
    }


def llama(layers: int) -> zoo.Case:
    """Return a narrow Llama of ``layers`` layers."""
    size = zoo.Size(width=64, layers=layers, vocabulary=100, side=32)
    return zoo.build("llama", size, 1, 16)


def bert_base() -> zoo.Case:
    """Return BERT at the size of its base model."""
    model = transformers.BertModel(transformers.BertConfig()).eval()
    ids = torch.randint(0, 30000, (2, 16))
    return model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(llama(1), 1)  # torch builds its tables at the first export
    rows = {"BERT-base": measure(bert_base(), options.rounds)}
    for layers in DEPTHS:
        rows[f"Llama, {layers} layers"] = measure(llama(layers), options.rounds)
    for name, row in rows.items():
        print(name, {key: round(value, 5) for key, value in row.items()}, flush=True)
    found = {
        "what": "processor seconds of one thread, medians; rest is convert - export",
        "torch": torch.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

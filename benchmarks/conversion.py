"""Time of a conversion without its capture, against torch.export's own time.

python -m benchmarks.conversion --out benchmarks/results/conversion.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from amprewrite.dispatch import planner
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.assemble import assemble
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.subject import Subject
from benchmarks import zoo

DEPTHS = (2, 10, 50, 200)
"""Layers of the Llama by which linearity is judged."""


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.thread_time()
    result = run()
    return time.thread_time() - start, result


def measure(case: zoo.Case, rounds: int) -> dict[str, float]:
    """Return median seconds of export and of the rest, and their ratio."""
    model, args, kwargs = case
    request = Request(planner("bf16"), args, kwargs)
    export, rest, ops = [], [], 0
    for _ in range(rounds):
        seconds, _ = _seconds(
            lambda: torch.export.export(model, args, kwargs, strict=False)
        )
        export.append(seconds)
        captured = capture(model, args, kwargs)
        seconds, converted = _seconds(
            partial(assemble, Subject.of(model, request), captured)
        )
        rest.append(seconds)
        ops = len(converted.plan.decisions)
    times = {"export": statistics.median(export), "rest": statistics.median(rest)}
    ratio = times["rest"] / times["export"]
    per_op = times["rest"] / ops
    return {**times, "rest / export": ratio, "ops": ops, "rest per op": per_op}


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
        "what": "processor seconds of one thread; rest is read, plan, write and fold",
        "torch": torch.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

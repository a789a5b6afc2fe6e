"""Programs, look-up time and bytes of a model that is called with many shapes.

python -m benchmarks.signatures --out benchmarks/results/signatures.json
"""

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

import amprewrite
from amprewrite.frameworks.torch_fx.derived.classes import programs_of

LENGTHS = range(5, 35)
BATCHES = (2, 3, 5)
CALLS = 2000
"""Look-ups of which the median is taken, in groups of 100."""


def bert(layers: int, width: int) -> Any:
    """Return a classifier of texts with random weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        vocab_size=1000,
    )
    return transformers.BertForSequenceClassification(config).eval()


def captures(model: Any, converted: Any) -> dict[str, Any]:
    """Return the number of programs for all lengths and batches, and the errors."""
    programs, errors = dict[str, int](), list[float]()
    for masked in (False, True):
        for batch in BATCHES:
            for length in LENGTHS:
                given = call(batch, length, masked=masked)
                with torch.no_grad():
                    expected = model(**given).logits.double()
                    found = converted(**given).logits.double()
                off = (found - expected).norm() / expected.norm()
                errors.append(float(off))
        programs["with masks" if masked else "without masks"] = len(converted.plans)
    return {
        "calls": len(errors),
        "programs after them": programs,
        "largest error": max(errors),
        "median error": statistics.median(errors),
    }


def call(batch: int, length: int, *, masked: bool) -> dict[str, torch.Tensor]:
    """Return token ids, and a mask of their first half."""
    numbers = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(3, 1000, (batch, length), generator=numbers)
    if not masked:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[:, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def look_up(converted: Any) -> dict[str, float]:
    """Return microseconds to find the program of a call that was made before."""
    programs = programs_of(converted)
    assert programs is not None
    found = dict[str, float]()
    for masked in (False, True):
        given = call(3, 20, masked=masked)
        converted(**given)
        times = list[float]()
        for _ in range(CALLS // 100):
            start = time.perf_counter()
            for _ in range(100):
                programs.program_for(converted, (), given)
            times.append((time.perf_counter() - start) * 1e4)
        found["with a mask" if masked else "without"] = statistics.median(times)
    return found


def stored(model: Any, converted: Any) -> dict[str, float]:
    """Return shares of the model's bytes: of all tensors, and of those that are low."""
    before, after = model.state_dict(), converted.state_dict()
    low = [name for name, held in after.items() if held.dtype == torch.bfloat16]
    whole = sum(held.nbytes for held in before.values())
    tables = sum(h.nbytes for n, h in before.items() if "embeddings" in n)
    programs = programs_of(converted)
    assert programs is not None
    kept = {held.data_ptr(): held.nbytes for held in after.values()}
    for program in programs.shared.programs:
        kept |= {t.data_ptr(): t.nbytes for t in program.tensors_read()}
    return {
        "float32 bytes": whole,
        "share of all programs together": sum(kept.values()) / whole,
        "share of embeddings in float32, which stay full": tables / whole,
        "share of low weights": sum(after[n].nbytes for n in low)
        / sum(before[n].nbytes for n in low),
    }


def measure(layers: int, width: int) -> dict[str, Any]:
    """Return all figures of one model."""
    model = bert(layers, width)
    start = call(2, 16, masked=False)
    converted = amprewrite.convert(model, kwargs=start)
    return {
        **captures(model, converted),
        "microseconds to look up a program": look_up(converted),
        **stored(model, converted),
    }


def main() -> None:
    """Measure both sizes, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = {
        "machine": {"processor": platform.machine(), "torch": version("torch")},
        "BERT, 32 layers of width 64": measure(32, 64),
        "BERT, 12 layers of width 256": measure(12, 256),
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

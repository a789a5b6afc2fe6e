"""Generation with a cache on a CPU: time of a token, tokens, logits and programs.

python -m benchmarks.generation --out benchmarks/results/generation.json
"""

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

import amprewrite

TOKENS, PROMPTS = 32, (16, 24, 40, 64)
"""New tokens, and lengths of the prompts of which each is generated once."""

SEARCHES: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "sampling": {"do_sample": True, "top_k": 20},
    "static cache": {"cache_implementation": "static"},
    "without cache": {"use_cache": False},
}


def llama() -> Any:
    """Return a Llama of four layers of width 512."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1408,
        vocab_size=4096,
        max_position_embeddings=1024,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    untyped: Any = model.generation_config
    untyped.pad_token_id, untyped.eos_token_id = 0, None
    return model


def generate(model: Any, length: int, how: Mapping[str, Any], tokens: int) -> Any:
    """Return token ids and logits that follow a prompt of random tokens."""
    numbers = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 4096, (1, length), generator=numbers)
    torch.manual_seed(1)
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        return_dict_in_generate=True,
        output_logits=True,
        **how,
    )


def searches(model: Any) -> dict[str, Any]:
    """Return tokens and programs of all searches over prompts of several lengths."""
    found = dict[str, Any]()
    for name, how in SEARCHES.items():
        converted = amprewrite.convert(model)
        rows, programs = list[dict[str, Any]](), list[int]()
        for length in PROMPTS:
            ours = generate(converted, length, how, TOKENS)
            programs.append(len(converted.plans))
            full = generate(model, length, how, TOKENS)
            row: dict[str, Any] = {
                "prompt": length,
                "same as float32": _same(ours, full),
                "first logits' error": _off(ours, full),
            }
            try:
                with torch.autocast("cpu", torch.bfloat16):
                    theirs = generate(model, length, how, TOKENS)
                row["same as autocast"] = _same(ours, theirs)
                row["autocast's same as float32"] = _same(theirs, full)
                row["first logits' error of autocast"] = _off(theirs, full)
            except RuntimeError as error:  # it cannot write to a static cache
                row["autocast fails"] = str(error)[:100]
            rows.append(row)
        found[name] = {"programs after each prompt": programs, "prompts": rows}
    return found


def _same(one: Any, other: Any) -> float:
    new = one.sequences[:, -TOKENS:] == other.sequences[:, -TOKENS:]
    return float(new.double().mean())


def _off(one: Any, other: Any) -> float:
    found, expected = one.logits[0].double(), other.logits[0].double()
    return float((found - expected).norm() / expected.norm())


def seconds(model: Any, rounds: int) -> dict[str, Any]:
    """Return median milliseconds of a token, interleaved, and ratios to autocast."""
    cast, converted = copy.deepcopy(model).bfloat16(), amprewrite.convert(model)

    def form(one: Any, *, autocast: bool = False) -> Callable[[], Any]:
        def run() -> Any:
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                return generate(one, 32, {}, TOKENS)

        return run

    forms = {
        "float32": form(model),
        "autocast": form(model, autocast=True),
        "bfloat16()": form(cast),
        "converted": form(converted),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(-2, rounds):
        for name, run in forms.items():
            start = time.perf_counter()
            run()
            if number >= 0:  # captured by then
                times[name].append((time.perf_counter() - start) / TOKENS * 1e3)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    pairs = zip(times["autocast"], times["converted"], strict=True)
    return {
        "milliseconds of a token": medians,
        "autocast's time over converted's": statistics.median(a / c for a, c in pairs),
    }


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    model = llama()
    flags = Path("/proc/cpuinfo").read_text()
    found = {
        "machine": {
            "processor": platform.machine(),
            "bfloat16 instructions": "avx512_bf16" in flags or "amx_bf16" in flags,
            "threads": torch.get_num_threads(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        "model": "Llama, 4 layers of width 512, batch 1",
        **seconds(model, arguments.rounds),
        "searches": searches(model),
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

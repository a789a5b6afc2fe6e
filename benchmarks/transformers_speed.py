"""Models of transformers that no other benchmark has, eager, beside bfloat16().

Twenty families with random weights, four layers of width 512, on 2 by 64 tokens. All
forms of a model run interleaved in one process, on one thread; the clock is its
processor time. Errors are relative to float64.

    python -m benchmarks.transformers_speed --out FILE.json
"""

import argparse
import json
import platform
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from amprewrite.errors import AmpWarning
from amprewrite.measure.timing import processor
from benchmarks.speed import errors, form_of, measure

SIZE: Mapping[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
"""Settings that most families call by these names."""

GROUPED: Mapping[str, Any] = {**SIZE, "num_key_value_heads": 2}

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "albert": ("AlbertModel", {**SIZE, "embedding_size": 128}),
    "bloom": ("BloomForCausalLM", {**SIZE, "n_layer": 4, "n_head": 8}),
    "deberta-v2": ("DebertaV2Model", SIZE),
    "falcon": ("FalconForCausalLM", SIZE),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 64}),
    "gpt-j": (
        "GPTJForCausalLM",
        {
            "vocab_size": 1000,
            "n_embd": 512,
            "n_layer": 4,
            "n_head": 8,
            "rotary_dim": 32,
        },
    ),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        {
            **SIZE,
            "num_layers": 4,
            "num_heads": 8,
            "attention_types": [[["global", "local"], 2]],
        },
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", SIZE),
    "granite": ("GraniteForCausalLM", GROUPED),
    "mamba": ("MambaForCausalLM", {**SIZE, "hidden_size": 256, "num_hidden_layers": 2}),
    "mistral": ("MistralForCausalLM", GROUPED),
    "modernbert": ("ModernBertModel", SIZE),
    "olmo2": ("Olmo2ForCausalLM", SIZE),
    "opt": ("OPTForCausalLM", {**SIZE, "ffn_dim": 1024, "word_embed_proj_dim": 512}),
    "phi": ("PhiForCausalLM", SIZE),
    "phi3": ("Phi3ForCausalLM", SIZE),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 64}),
    "roberta": ("RobertaModel", SIZE),
    "starcoder2": ("Starcoder2ForCausalLM", GROUPED),
}
"""Class of transformers, and settings of its configuration, by family."""

FORMS = ("float32", "autocast", "bfloat16()", "promote")


def build(family: str) -> tuple[Any, tuple[()], dict[str, Any]]:
    """Return a model with random weights, and its arguments."""
    torch.manual_seed(0)
    name, settings = FAMILIES[family]
    kind: Any = getattr(transformers, name)
    model = kind(kind.config_class(**settings)).eval()
    tokens = torch.randint(1, settings["vocab_size"], (2, 64))
    is_causal = name.endswith("CausalLM")
    return (
        model,
        (),
        {"input_ids": tokens, **({"use_cache": False} if is_causal else {})},
    )


def row(family: str, rounds: int) -> dict[str, Any]:
    """Return times of the rivals over that of the converted model, and errors."""
    case = build(family)
    runs = {form: form_of(form, "eager", case, "cpu") for form in FORMS}
    seconds = measure(runs, rounds, "cpu")
    error = errors(runs, case)
    ours = FORMS[-1]
    return {
        "milliseconds": round(1e3 * seconds[ours], 2),
        "time / ours": {
            form: round(seconds[form] / seconds[ours], 3) for form in FORMS[:-1]
        },
        "error / autocast's": {
            form: round(error[form] / error["autocast"], 3) for form in (ours, FORMS[2])
        },
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", default=FAMILIES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", AmpWarning)
    name, instructions = processor()
    rows: dict[str, dict[str, Any]] = {}
    for family in options.families:
        rows[family] = row(family, options.rounds)
        print(family, rows[family], flush=True)
    gains = {
        form: round(
            statistics.geometric_mean(
                one["time / ours"][form] for one in rows.values()
            ),
            3,
        )
        for form in FORMS[:-1]
    }
    print(gains)
    found = {
        "what": "medians of processor time, one thread, eager; errors against float64",
        "processor": f"{name} ({instructions})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "geometric means of time / ours": gains,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

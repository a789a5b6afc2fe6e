"""Placements on whole models: casts, bytes, predicted and measured errors.

python -m benchmarks.placement_models --out benchmarks/results/placement_models.json

What autocast does is counted as it runs, and so are the converted models, in the same
way. Random weights have unit gain (benchmarks/zoo.py); MiniLM is pretrained. With
--models what is not measured stays in the file as it is.
"""

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import scipy
import torch
import transformers
from torch.utils import _pytree as pytree  # noqa: TID251

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx import framework as torch_side
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.error_budget.budget import Budget
from amprewrite.passes.error_budget.measured_search import plan_within
from amprewrite.plan import OUTPUT, Plan
from amprewrite.plan.sensitivity import Measurements, Probes
from amprewrite.policy import Matcher, load_policy
from benchmarks import zoo
from benchmarks.placement_counter import Counted, count

BATCH, TOKENS = 8, 128

FRESH = 5
"""Other inputs on which each plan within a tolerance is tried."""

TOLERANCES = (1e-2, 3e-3, 1e-3, 3e-4)

SMALL = ("mlp", "nn_transformer", "bert", "llama", "vit")
"""Models of the zoo, at its small size, on which tolerances are tried."""

PLACEMENTS = ("promote", "paint", "optimal")

WITHIN = "optimal, tolerance='autocast'"
"""The plan that is not worse than autocast on the same arguments."""

NEAR = 1.05
"""Errors that differ by less are called the same."""

NEARLY = f"optimal, {NEAR} of autocast's error"
"""The plan whose measured error is called the same as autocast's."""


def _ids(vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (BATCH, TOKENS))


def _bert() -> zoo.Case:
    config = transformers.BertConfig()
    return transformers.BertModel(config), (_ids(config.vocab_size),), {}


def _gpt2() -> zoo.Case:
    config = transformers.GPT2Config(use_cache=False)
    return transformers.GPT2LMHeadModel(config), (_ids(config.vocab_size),), {}


def _vit() -> zoo.Case:
    model = transformers.ViTModel(transformers.ViTConfig())
    return model, (torch.randn(BATCH, 3, 224, 224),), {}


def _llama() -> zoo.Case:
    config = transformers.LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=1376,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), (_ids(8000),), {}


def _minilm() -> zoo.Case:
    return zoo.minilm(zoo.BASE, BATCH, TOKENS)


MODELS: Mapping[str, Callable[[], zoo.Case]] = {
    "BERT-base": _bert,
    "GPT-2": _gpt2,
    "ViT-base": _vit,
    "Llama-style, 8 layers of 512": _llama,
    "MiniLM, pretrained": _minilm,
}


@dataclass
class Recorder:
    """Stands in for a budget, and keeps what was measured of a program."""

    budget: Budget
    found: list[Measurements] = field(default_factory=list[Measurements])
    near: list[Plan] = field(default_factory=list[Plan])
    seconds: float = 0.0

    @property
    def tolerance(self) -> Any:
        """What the budget has."""
        return self.budget.tolerance

    @property
    def bounds_gradients(self) -> bool:
        """What the budget has."""
        return self.budget.bounds_gradients

    @property
    def substitutes(self) -> bool:
        """What the budget has."""
        return self.budget.substitutes

    def remembered(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool
    ) -> Plan | None:
        """Return what the budget does."""
        return self.budget.remembered(graph, keep_parameter_dtype=keep_parameter_dtype)

    def probes(self, graph: ProgramGraph, *, keep_parameter_dtype: bool) -> Probes:
        """Return what may be rounded."""
        return self.budget.probes(graph, keep_parameter_dtype=keep_parameter_dtype)

    def promoted(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool, captured: str
    ) -> Plan:
        """Return the plan of placement ``promote``."""
        return self.budget.promoted(
            graph, keep_parameter_dtype=keep_parameter_dtype, captured=captured
        )

    def plan(self, measured: Measurements) -> Plan:
        """Return the plan, and take the time that it takes."""
        self.found.append(measured)
        start = time.process_time()
        plan = self.budget.plan(measured)
        self.seconds = time.process_time() - start
        goal = self.budget.goal(replace(measured, target=NEAR * measured.target))
        self.near.append(plan_within(goal))
        return plan


def relative(found: Any, wanted: Any) -> float:
    """Return the relative L2 error of all float outputs together."""

    def flat(output: Any) -> torch.Tensor:
        leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
        return torch.cat(
            [x.flatten().double() for x in leaves if x.is_floating_point()]
        )

    one, other = flat(found), flat(wanted)
    return float((one - other).norm() / other.norm())


def _built(make: Callable[[], zoo.Case], name: str) -> zoo.Case:
    torch.manual_seed(0)
    model, args, kwargs = make()
    if "pretrained" not in name:
        zoo.unit_gain(model)
    return model.eval(), args, kwargs


def _double(tree: Any) -> Any:
    def wide(leaf: Any) -> Any:
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.double() if is_float else leaf

    return pytree.tree_map(wide, tree)


def _row(counted: Counted, error: float, plan: Plan | None = None) -> dict[str, Any]:
    cost: dict[str, Any] = {}
    if plan is not None:
        cost = {
            "casts": plan.cost.casts,
            "cast bytes": plan.cost.cast_bytes,
            "op bytes": plan.cost.op_bytes,
            "cast bytes of outputs": _of_outputs(plan),
            "total bytes": plan.cost.total_bytes,
            "lower bound": plan.cost.lower_bound,
        }
    seen = {key.replace("_", " "): found for key, found in asdict(counted).items()}
    return {"plan": cost, "as it runs": seen, "error": float(f"{error:.3e}")}


def _of_outputs(plan: Plan) -> int:
    """Return the bytes of casts that hand an output back in the dtype of the model.

    Autocast has none: it hands back what its last op computes.
    """
    casts = (cast for cast in plan.runtime_casts if set(cast.consumers) == {OUTPUT})
    return sum(cast.bytes for cast in casts)


def compare(name: str, make: Callable[[], zoo.Case]) -> dict[str, Any]:
    """Return a row for each placement of one model, and for autocast."""
    model, args, kwargs = _built(make, name)
    with torch.no_grad():
        reference = model.double()(*_double(args), **_double(kwargs))
        model.float()
    model, args, kwargs = _built(make, name)
    with torch.autocast("cpu", torch.bfloat16):
        counted, output = count(model, args, kwargs)
    rows = {"torch.autocast": _row(counted, relative(output, reference))}
    print(name, rows, flush=True)

    budget = Budget("autocast", partial(Matcher, load_policy("bf16"), ()), Objective())
    recorder = Recorder(budget)
    request = Request(
        planner=planner("bf16", (), "optimal"),
        args=args,
        kwargs=kwargs,
        low="bfloat16",
        budget=recorder,
    )
    start = time.process_time()
    within = torch_side.convert(model, request)
    spent = time.process_time() - start  # with two searches
    (measured,) = recorder.found
    converted: dict[str, Callable[[], Any]] = {
        placement: partial(
            amprewrite.convert, model, args=args, kwargs=kwargs, placement=placement
        )
        for placement in PLACEMENTS
    }
    converted[WITHIN] = lambda: within
    converted[NEARLY] = partial(
        amprewrite.convert, model, args=args, kwargs=kwargs, plan=recorder.near[0]
    )
    for placement, make_one in converted.items():
        module = make_one()
        counted, output = count(module, args, kwargs)
        row = _row(counted, relative(output, reference), module.plan)
        predicted = measured.sensitivity.predicted(module.plan, measured.graph)
        row["predicted error"] = float(f"{predicted:.3e}")
        row["predicted over measured"] = round(predicted / row["error"], 3)
        rows[placement] = row
        print(name, placement, row, flush=True)
        del module, output
        gc.collect()
    return {
        "ops": len(measured.graph.ops),
        "probes": len(measured.sensitivity.all),
        "conversion within the tolerance, processor seconds": round(spent, 1),
        "rows": rows,
        "wanted": _judged(rows),
    }


def _judged(rows: Mapping[str, Any]) -> dict[str, Any]:
    auto = rows["torch.autocast"]
    plans = [row for row in rows.values() if "predicted error" in row]
    ratios = [row["predicted over measured"] for row in plans]
    total, casts = rows["promote"]["plan"]["total bytes"], auto["as it runs"]
    found: dict[str, Any] = {
        "weight casts at run time": {
            name: row["as it runs"]["weight casts"]
            for name, row in rows.items()
            if "predicted error" in row
        },
        "predicted over measured": [min(ratios), max(ratios)],
    }
    for name in (WITHIN, NEARLY):
        row, plan = rows[name], rows[name]["plan"]
        moved, given = row["as it runs"]["cast bytes"], plan["cast bytes of outputs"]
        found[name] = {
            "error over autocast's": round(row["error"] / auto["error"], 3),
            "total bytes over promote's": round(plan["total bytes"] / total, 3),
            "cast bytes over autocast's": round(moved / casts["cast bytes"], 3),
            "without those of outputs": round((moved - given) / casts["cast bytes"], 3),
        }
    return found


def planning() -> dict[str, Any]:
    """Return processor seconds of capturing BERT-base and of planning it."""
    model, args, kwargs = _built(_bert, "BERT-base")
    captures: list[float] = []
    plans: dict[str, list[float]] = {"promote": [], "optimal": []}
    for turn in range(4):
        start = time.process_time()
        captured = capture(model, args, kwargs)
        captures.append(time.process_time() - start)
        graph = read(captured.module).graph
        for placement, found in plans.items():
            start = time.process_time()
            planner("bf16", (), placement)(
                graph, keep_parameter_dtype=False, captured=""
            )
            if turn:
                found.append(time.process_time() - start)
    seconds = statistics.median(captures[1:])
    return {
        "capture": round(seconds, 3),
        **{
            f"planning, {name}, over capture": round(
                statistics.median(found) / seconds, 3
            )
            for name, found in plans.items()
        },
    }


def fresh() -> dict[str, Any]:
    """Return how often a tolerance is kept on inputs that the plan never saw."""
    rows: dict[str, Any] = {}
    kept = pairs = low = 0
    for policy in ("bf16", "fp16"):
        for name in SMALL:
            model, args, kwargs = zoo.build(name, zoo.TINY, 4, 32)
            cases = [_other(name, seed) for seed in range(1, FRESH + 1)]
            for bound in TOLERANCES:
                converted = amprewrite.convert(
                    model,
                    policy,
                    args=args,
                    kwargs=kwargs,
                    placement="optimal",
                    tolerance=bound,
                )
                with torch.no_grad():
                    errors = [
                        relative(converted(*a, **k), model(*a, **k)) for a, k in cases
                    ]
                lowered = len(converted.plan.lowered)
                pairs, kept = pairs + 1, kept + (max(errors) <= bound)
                low += lowered > 0
                rows[f"{policy} {name} {bound:g}"] = {
                    "lowered": lowered,
                    "predicted": float(f"{converted.plan.predicted_error:.2e}"),
                    "largest of fresh": float(f"{max(errors):.2e}"),
                }
                print(
                    policy, name, bound, rows[f"{policy} {name} {bound:g}"], flush=True
                )
    return {"pairs": pairs, "kept on all": kept, "with low ops": low, "rows": rows}


def _other(name: str, seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    _, args, kwargs = zoo.ZOO[name](zoo.TINY, 4, 32)
    return args, kwargs


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, help="these alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "what": f"batch {BATCH}, {TOKENS} tokens; bytes by the prices of eager",
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "scipy": scipy.__version__,
    }
    kept: dict[str, Any] = {}
    if options.models and options.out and options.out.exists():
        kept = json.loads(options.out.read_text("utf-8"))
    if options.models is None:
        found |= {"planning": planning(), "fresh inputs": fresh()}
    measured = {name: compare(name, MODELS[name]) for name in options.models or MODELS}
    found = {**kept, **found, "models": {**kept.get("models", {}), **measured}}
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Generation, a token at a time with a cache: time of a token, and the tokens."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache

import amprewrite
from benchmarks.gpu import meters, models
from benchmarks.gpu.table import Table
from benchmarks.gpu.variants import LOWS

WHAT = (
    "seconds of one decoded token (median over tokens) after a prompt, greedy; same: "
    "share of tokens that are float32's; ratio: autocast's median over the form's"
)

FORMS = ("float32", "autocast", "cast", "promote")

PROMPT, TOKENS = 128, 64


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``, a row for each policy and batch."""
    for policy in ("bf16",) if tiny else ("bf16", "fp16"):
        for batch in (1,) if tiny else (1, 16):
            table.row(
                f"llama-1b, {policy}, batch {batch}",
                lambda p=policy, b=batch: _row(p, b, device, tiny=tiny),
                needs=0 if tiny else 60,
            )


def _row(policy: str, batch: int, device: str, *, tiny: bool) -> dict[str, Any]:
    model: Any = models.build("llama-1b", device, tiny=tiny)
    torch.manual_seed(2)
    count = 4 if tiny else TOKENS
    size = (batch, 8 if tiny else PROMPT)
    prompt = torch.randint(3, model.config.vocab_size, size, device=device)
    row: dict[str, Any] = {"prompt": list(size), "tokens": count}
    made: dict[str, torch.Tensor] = {}
    for form in FORMS:
        try:
            program = _program(model, policy, form)
            _decode(program, prompt, 2)  # captured for the prompt and for one token
            made[form], times = _decode(program, prompt, count)
            row[form] = {"seconds": sorted(times)[len(times) // 2]}
        except Exception as error:  # noqa: BLE001  # a form that fails is a result
            row[form] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    for form, tokens in made.items():
        if "float32" in made:
            row[form]["same"] = float((tokens == made["float32"]).double().mean())
    if "autocast" in made:
        theirs = row["autocast"]["seconds"]
        row["ratio"] = {form: theirs / row[form]["seconds"] for form in made}
    return row


def _program(model: Any, policy: str, form: str) -> Callable[..., Any]:
    low = LOWS[policy]
    if form == "cast":
        return copy.deepcopy(model).to(low)
    if form == "promote":
        return amprewrite.convert(model, policy)
    if form == "float32":
        return model

    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(next(model.parameters()).device.type, low):
            return model(*args, **kwargs)

    return under_autocast


def _decode(
    program: Callable[..., Any], prompt: torch.Tensor, count: int
) -> tuple[torch.Tensor, list[float]]:
    """Return the tokens that follow a prompt, and the seconds of each but the first."""
    cache = DynamicCache()
    ids, made, times = prompt, list[torch.Tensor](), list[float]()
    with torch.no_grad():
        for number in range(count):
            found: list[Any] = []

            def run(given: torch.Tensor = ids, out: list[Any] = found) -> None:
                out.append(program(given, past_key_values=cache, use_cache=True))

            took = meters.once(run)
            ids = found[0].logits[:, -1:].argmax(-1)
            made.append(ids)
            if number:
                times.append(took)
    return torch.cat(made, 1), times

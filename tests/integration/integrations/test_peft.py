"""LoRA of PEFT before and after the conversion."""

import gc
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("tokenizers")

import amprewrite
from amprewrite.errors import UnsupportedError
from tests.torch_programs import relative_error
from tests.transformers_models import SENTENCES, tiny, tokenizer

# peft calls a method that transformers deprecates
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")

CLOSE = 5 * 2.0**-8
"""Bound on relative errors of logits: a few roundings of bfloat16."""

LABELS = torch.tensor([0, 1, 1])


def base() -> Any:
    return tiny(
        "BertForSequenceClassification",
        num_labels=2,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def with_lora(model: Any) -> Any:
    """Return a model with adapters that change what it gives."""
    torch.manual_seed(1)
    config = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=4,
        target_modules=["query", "value"],
        init_lora_weights=False,
    )
    return peft.get_peft_model(model, config)


def before(training: bool) -> Any:  # noqa: FBT001  # a mode is a boolean in torch
    return amprewrite.convert(with_lora(base()).train(training))


def after(training: bool) -> Any:  # noqa: FBT001  # as above
    return with_lora(amprewrite.convert(base().train(training)))


@pytest.fixture(scope="module")
def batch() -> dict[str, Any]:
    return dict(tokenizer()(SENTENCES, padding=True, return_tensors="pt"))


class Step(NamedTuple):
    """A model after one step of training, the same in full, and their gradients."""

    low: Any
    full: Any
    gradients: tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module", params=[before, after])
def step(request: pytest.FixtureRequest, batch: dict[str, Any]) -> Step:
    models = request.param(True), with_lora(base()).train()
    gradients: list[dict[str, Any]] = []
    for model in models:
        model(**batch, labels=LABELS).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        trained = [held for held in model.parameters() if held.requires_grad]
        torch.optim.SGD(trained, lr=0.5).step()
    return Step(*models, (gradients[0], gradients[1]))


def lowered(model: Any) -> set[str]:
    """Return the dtypes in which the converted model inside computes its layers."""
    plan = getattr(model, "plan", None) or model.base_model.model.plan
    return {d.operands[0] for d in plan.decisions if d.canonical == "linear"}


def logits(model: Any, batch: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**batch).logits


def test_adapters_train_and_the_base_is_frozen(step: Step, batch: Any) -> None:
    low, full = step.gradients
    assert low.keys() == full.keys()
    assert any("lora_A" in name and found is not None for name, found in low.items())
    for name, expected in full.items():
        if expected is None:
            assert low[name] is None, name
        else:
            assert relative_error(low[name], expected) < 0.1, name
    found = logits(step.low, batch)
    assert 1e-4 < relative_error(found, logits(step.full, batch)) < CLOSE
    assert lowered(step.low) == {"bfloat16"}


def test_adapters_are_disabled_for_a_while(step: Step, batch: Any) -> None:
    found = logits(step.low, batch)
    with step.low.disable_adapter(), step.full.disable_adapter():
        without, expected = logits(step.low, batch), logits(step.full, batch)
    assert relative_error(without, expected) < CLOSE
    assert relative_error(without, found) > 0.2
    assert torch.equal(logits(step.low, batch), found)


def test_adapters_are_saved(step: Step, batch: Any, tmp_path: Path) -> None:
    step.low.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path).eval()
    assert relative_error(logits(loaded, batch), logits(step.full, batch)) < CLOSE
    names = {path.name for path in tmp_path.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= names


@pytest.mark.parametrize("way", [before, after])
def test_they_are_merged(way: Any, batch: Any) -> None:
    model, full = way(True), with_lora(base())
    logits(model, batch)
    for one in (model, full):
        torch.manual_seed(2)
        for held in one.parameters():
            if held.requires_grad:
                held.data.add_(0.1 * torch.randn_like(held))
    expected = logits(full, batch)
    merged = model.merge_and_unload()
    assert isinstance(merged, transformers.BertForSequenceClassification)
    assert relative_error(logits(merged, batch), expected) < CLOSE
    assert not any("lora" in name for name, _ in merged.named_parameters())


def test_the_plain_model_is_merged(batch: Any) -> None:
    model = before(True)
    merged = amprewrite.original(model).merge_and_unload()
    expected = with_lora(base()).merge_and_unload()
    assert type(merged) is transformers.BertForSequenceClassification
    assert relative_error(logits(merged, batch), logits(expected, batch)) < 1e-5
    again: Any = amprewrite.convert(merged.eval())
    assert relative_error(logits(again, batch), logits(expected, batch)) < CLOSE


def test_a_merged_part_does_not_outlive_its_model(batch: Any) -> None:
    merged = before(False).merge_and_unload()
    gc.collect()
    with pytest.raises(UnsupportedError, match="does not exist any more"):
        merged(**batch)


def test_other_adapters_are_followed(batch: Any) -> None:
    low, full = before(False), with_lora(base()).eval()
    for model in (low, full):
        torch.manual_seed(2)
        model.add_adapter("other", model.peft_config["default"])
    for name in ("other", "default", "other"):
        low.set_adapter(name)
        full.set_adapter(name)
        expected = logits(full, batch)
        assert relative_error(logits(low, batch), expected) < CLOSE
    full.set_adapter("default")
    assert relative_error(logits(full, batch), expected) > 0.2


def test_one_converted_with_args_merges_in_low(batch: Any) -> None:
    model, full = with_lora(base()).eval(), with_lora(base()).eval()
    args = batch["input_ids"], batch["attention_mask"]
    low: Any = amprewrite.convert(model, args=args)
    expected = logits(full, batch)
    low.merge_adapter()
    with torch.no_grad():
        assert relative_error(low(*args).logits, expected) < 2 * CLOSE
    assert relative_error(logits(model, batch), expected) < 1e-6  # a snapshot

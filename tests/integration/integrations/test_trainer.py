"""The Trainer of transformers with the whole model converted."""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("tokenizers")

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.integrations.transformers import PlanCallback
from amprewrite.plan import Plan
from tests.torch_programs import in_full, relative_error, under_autocast
from tests.transformers_models import SENTENCES, Texts, tiny, tokenizer

STEPS = 60


def classifier() -> Any:
    """Return a classifier without dropout, in train mode."""
    return tiny(
        "BertForSequenceClassification",
        num_labels=2,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ).train()


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


@pytest.fixture(scope="module")
def texts() -> Any:
    return Texts(480), Texts(64, seed=1)


def trainer(model: Any, texts: Any, folder: Path, **options: Any) -> Any:
    callbacks = options.pop("callbacks", None)
    chosen = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 64,
        "learning_rate": 5e-3,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "output_dir": str(folder),
    }
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**chosen | options),
        train_dataset=texts[0],
        eval_dataset=texts[1],
        processing_class=tokenizer(),
        compute_metrics=accuracy,
        callbacks=callbacks,
    )


def losses(found: Any) -> list[float]:
    return [row["loss"] for row in found.state.log_history if "loss" in row]


class Run(NamedTuple):
    """A trained model, its trainer, and the folder of its checkpoints."""

    plain: Any
    model: Any
    full: Any
    low: Any
    folder: Path


@pytest.fixture(scope="module")
def run(texts: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train the same model as it is and converted."""
    folder = tmp_path_factory.mktemp("run")
    plain, model = classifier(), classifier()
    full = trainer(plain, texts, folder / "full")
    low = trainer(
        amprewrite.convert(model),
        texts,
        folder / "low",
        callbacks=[PlanCallback()],
        save_strategy="steps",
        save_steps=STEPS,
    )
    full.train()
    low.train()
    return Run(plain, model, full, low, folder / "low")


def test_it_trains(run: Run) -> None:
    expected, found = losses(run.full), losses(run.low)
    assert found[-1] < 0.6 * found[0]
    assert found != expected
    assert found == pytest.approx(expected, rel=0.05)
    plan = run.low.model.plan
    assert {d.operands[0] for d in plan.decisions if d.canonical == "linear"} == {
        "bfloat16"
    }


def test_it_evaluates_and_predicts(run: Run, texts: Any) -> None:
    found, expected = run.low.evaluate(), run.full.evaluate()
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=0.05)
    assert found["eval_accuracy"] > 0.9
    predicted = run.low.predict(texts[1])
    logits = torch.from_numpy(predicted.predictions)
    batch = run.low.data_collator([texts[1][i] for i in range(len(texts[1]))])
    model = run.model.eval()
    wanted, autocast = (way(model, **batch).logits for way in (in_full, under_autocast))
    bound = 1.3 * relative_error(autocast, wanted)
    assert 1e-4 < relative_error(logits, wanted) < bound


def test_it_saves_the_model_in_full(run: Run, tmp_path: Path) -> None:
    run.low.save_model(str(tmp_path))
    for folder in (tmp_path, run.folder / f"checkpoint-{STEPS}"):
        kind = transformers.BertForSequenceClassification
        found = kind.from_pretrained(folder)
        assert type(found) is kind
        trained = run.model.state_dict()
        assert found.state_dict().keys() == trained.keys()
        for name, held in found.state_dict().items():
            assert torch.equal(held, trained[name]), name


def test_it_goes_on_from_a_checkpoint(run: Run, texts: Any, tmp_path: Path) -> None:
    again = trainer(
        amprewrite.convert(classifier()), texts, tmp_path, max_steps=STEPS + 5
    )
    again.train(resume_from_checkpoint=str(run.folder / f"checkpoint-{STEPS}"))
    assert again.state.global_step == STEPS + 5
    assert losses(again)[-1] < 0.6 * losses(run.low)[0]


def test_the_callback_logs_and_saves_the_plans(run: Run) -> None:
    rows = [row for row in run.low.state.log_history if "loss" in row]
    assert all(0.2 < row["low_ops"] < 0.8 for row in rows)
    assert 1 <= rows[0]["programs"] <= rows[-1]["programs"] <= 3
    saved = sorted((run.folder / f"checkpoint-{STEPS}").glob("plan_*.json"))
    assert len(saved) == rows[-1]["programs"]
    assert Plan.load(saved[0]) == run.low.model.plans[0]


def test_options_of_the_trainer_are_followed(texts: Any, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "label_smoothing_factor": 0.1,
        "max_steps": 10,
        "bf16": True,
    }
    model = classifier()
    found = trainer(amprewrite.convert(copy.deepcopy(model)), texts, tmp_path, **chosen)
    found.train()
    expected = trainer(model, texts, tmp_path, **chosen | {"bf16": False})
    expected.train()
    assert losses(found) != losses(expected)
    assert losses(found) == pytest.approx(losses(expected), rel=0.02)
    assert found.model.plan.lowered


@pytest.mark.parametrize("name", ["bf16", "bf16_full_eval", "fp16_full_eval"])
def test_the_callback_refuses_another_precision(
    name: str, texts: Any, tmp_path: Path
) -> None:
    made = trainer(amprewrite.convert(classifier()), texts, tmp_path)
    with pytest.raises(UnsupportedError, match=rf"{name}=True.*leave {name} out"):
        PlanCallback().on_train_begin(
            transformers.TrainingArguments(use_cpu=True, **{name: True}),
            made.state,
            made.control,
            model=made.model,
        )


def test_the_callback_refuses_a_plain_model(texts: Any, tmp_path: Path) -> None:
    made = trainer(classifier(), texts, tmp_path, callbacks=[PlanCallback()])
    with pytest.raises(UnsupportedError, match="plain BertForSequenceClassification"):
        made.train()


@pytest.mark.parametrize(
    ("policy", "scaled", "message"),
    [("fp16", False, "without a loss scale"), ("bf16", True, "leave fp16 out")],
)
def test_the_callback_refuses_a_loss_scale_that_does_not_fit(
    policy: str, *, scaled: bool, message: str, texts: Any, tmp_path: Path
) -> None:
    tokens = tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    converted = amprewrite.convert(classifier(), policy)
    converted(**tokens)
    made = trainer(converted, texts, tmp_path)
    made.args.fp16 = scaled
    with pytest.raises(UnsupportedError, match=message):
        PlanCallback().on_step_end(made.args, made.state, made.control, model=converted)


def test_a_model_converted_for_inference_is_not_trained(
    texts: Any, tmp_path: Path
) -> None:
    ids = tokenizer()(SENTENCES, padding=True, return_tensors="pt")["input_ids"]
    converted = amprewrite.convert(classifier().eval(), args=(ids,))
    with pytest.raises(UnsupportedError, match="convert it again"):
        trainer(converted, texts, tmp_path).train()

"""Common checks of transformers' own tests, on converted models.

They are written anew here: signature, saving, embeddings, outputs of layers, batches,
training, checkpointing, copies and moves. Generation has a file of its own.
"""

import copy
import inspect
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError, UnsupportedError
from tests import transformers_models as models
from tests.torch_programs import relative_error, under_autocast

NAMES = ("bert", "gpt2", "llama", "t5", "vit", "whisper")
ROUNDING = 2.0**-8


class Pair(NamedTuple):
    """A model, its conversion, and arguments."""

    name: str
    model: Any
    made: Any
    given: dict[str, Any]

    def limit(self, **options: Any) -> float:
        """Return the error that is allowed: near autocast's on the same call."""
        given = self.given | options
        full = in_full(self.model, **given)
        theirs = relative_error(under_autocast(self.model, **given), full)
        return max(2 * ROUNDING, 1.5 * theirs)


def in_full(model: Any, **given: Any) -> Any:
    with torch.no_grad():
        return model(**given)


def call(name: str, **options: Any) -> dict[str, Any]:
    """Return arguments; without a cache, whose class export cannot give back."""
    without = {"use_cache": False} if name in ("t5", "whisper") else {}
    return models.call(name, **options) | without


@pytest.fixture(scope="module", params=NAMES)
def pair(request: Any) -> Iterator[Pair]:
    model, given = models.build(request.param), call(request.param)
    made = amprewrite.convert(model, kwargs=given)
    assert made.plan.captured == "captured by torch.export"
    yield Pair(request.param, model, made, given)
    assert len(made.plans) < 16, "no check captures without end"


def test_it_is_the_model_that_it_was(pair: Pair) -> None:
    model, made = pair.model, pair.made
    assert isinstance(made, type(model))
    assert inspect.signature(made.forward) == inspect.signature(model.forward)
    for name in ("config", "base_model_prefix", "main_input_name", "device"):
        assert getattr(made, name) == getattr(model, name)
    assert made.can_generate() == model.can_generate()
    assert made.num_parameters() == model.num_parameters()
    assert list(dict(made.named_parameters())) == list(dict(model.named_parameters()))
    assert isinstance(made.base_model, type(model.base_model))


def test_outputs_are_close_and_of_the_same_kinds(pair: Pair) -> None:
    expected, found = in_full(pair.model, **pair.given), pair.made(**pair.given)
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    assert 0 < relative_error(found.logits, expected.logits) < pair.limit()
    assert torch.equal(found.logits, pair.made(**pair.given).logits)
    as_tuple = pair.made(**pair.given, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert relative_error(as_tuple[0], found.logits) < pair.limit()


def test_a_batch_gives_what_its_rows_give(pair: Pair) -> None:
    one = {k: v[:1] if torch.is_tensor(v) else v for k, v in pair.given.items()}
    together = pair.made(**pair.given).logits[:1]
    assert relative_error(pair.made(**one).logits, together) < 2 * pair.limit()


def test_a_saved_model_is_plain_and_loads(pair: Pair, tmp_path: Path) -> None:
    pair.made.save_pretrained(tmp_path)
    plain = type(pair.model).from_pretrained(tmp_path).eval()
    assert type(plain) is type(pair.model)
    assert plain.dtype == pair.model.dtype
    again = amprewrite.convert(plain, kwargs=pair.given)
    found = again(**pair.given).logits
    assert torch.equal(found, pair.made(**pair.given).logits)


@pytest.mark.slow
def test_outputs_of_layers_are_given_when_asked_for(pair: Pair) -> None:
    model, made = copy.deepcopy(pair.model), copy.deepcopy(pair.made)
    asked = {"output_hidden_states": True, "output_attentions": True}
    for implementation in ("as it is", "eager"):
        if implementation == "eager":  # which alone gives attentions
            for one in (model, made):
                one.set_attn_implementation("eager")
        expected = in_full(model, **pair.given, **asked)
        for found in (made(**pair.given, **asked), made(**pair.given, **asked)):
            for name in expected:
                if not name.endswith(("hidden_states", "attentions")):
                    continue
                assert len(found.get(name, ())) == len(expected[name]), name
                if expected[name]:
                    off = relative_error(found[name], expected[name])
                    assert off < 2 * pair.limit(), name
    assert expected.get("attentions") or expected.get("decoder_attentions")


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_outputs_of_layers_are_one_program_for_all_lengths(name: str) -> None:
    model, asked = models.build(name), {"output_hidden_states": True}
    made = amprewrite.convert(model, kwargs=call(name) | asked)
    for tokens in (6, 3, 5, 9):
        given = call(name, tokens=tokens) | asked
        expected = in_full(model, **given).hidden_states
        found = made(**given).hidden_states
        for ours, theirs in zip(found, expected, strict=True):
            assert relative_error(ours, theirs) < 4 * ROUNDING
    assert len(made.plans) == 2, "one is for fixed extents, one for all others"


def test_the_kind_of_loss_is_named_by_the_first_call_with_labels() -> None:
    """Labels of another kind have the loss that the first ones asked for."""
    model = models.build("bert")
    reference, given = copy.deepcopy(model), call("bert") | {"labels": _labels("bert")}
    made = amprewrite.convert(model, kwargs=given)
    assert made.config.problem_type is None
    for tokens in (6, 6, 9):
        given = call("bert", tokens=tokens) | {"labels": _labels("bert")}
        expected, found = in_full(reference, **given), made(**given)
        assert relative_error(found.loss, expected.loss) < 2 * ROUNDING
        assert made.config.problem_type == reference.config.problem_type
    assert made.config.problem_type == "single_label_classification"
    assert amprewrite.original(made).config.problem_type == made.config.problem_type
    assert model.config.problem_type is None
    assert {plan.captured for plan in made.plans} == {"captured by torch.export"}
    soft = {"labels": torch.rand(2, model.config.num_labels)}
    for one in (reference, made):
        with pytest.raises((ValueError, CaptureError), match="batch_size"):
            one(**call("bert"), **soft)


def test_embeddings_may_be_given_and_resized(pair: Pair) -> None:
    if pair.name in ("vit", "whisper"):
        pytest.skip("it has no token embeddings at its input")
    model, made = copy.deepcopy(pair.model), copy.deepcopy(pair.made)
    given = dict(pair.given)
    given["inputs_embeds"] = model.get_input_embeddings()(given.pop("input_ids"))
    expected = in_full(model, **pair.given).logits
    assert relative_error(made(**given).logits, expected) < pair.limit()
    for one in (model, made):
        one.resize_token_embeddings(models.VOCABULARY + 8)
    found, wider = made(**pair.given).logits, in_full(model, **pair.given).logits
    assert found.shape == wider.shape
    old = slice(0, expected.shape[-1])  # rows that were added are random
    assert relative_error(found[..., old], expected) < pair.limit()
    assert made.config.vocab_size == models.VOCABULARY + 8


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_trains_with_and_without_checkpoints(name: str) -> None:
    model = models.build(name).train()
    for part in model.modules():  # without dropout, so that runs compare
        for field in ("dropout", "attention_dropout", "activation_dropout", "p"):
            if isinstance(getattr(part, field, None), float):
                setattr(part, field, 0.0)
    given = call(name) | {"labels": _labels(name)}
    expected = _gradients(model, model, given)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = _off(_gradients(model, model, given), expected)
    made: Any = amprewrite.convert(model, kwargs=given)
    whole = _gradients(made, model, given)
    assert 0 < _off(whole, expected) < max(2 * ROUNDING, 1.5 * theirs)
    made.activation_checkpointing_enable()
    assert made.is_activation_checkpointing
    with warnings.catch_warnings():
        # Its hook, which makes the embeddings need gradients, breaks the graph.
        warnings.filterwarnings("ignore", "dynamo runs .* graph break", AmpWarning)
        pieces = _gradients(made, model, given)
    assert _off(pieces, expected) < max(2 * ROUNDING, 1.5 * theirs)
    assert made.plan.captured != "captured by torch.export", "which has no checkpoints"
    products = [d for d in made.plan.decisions if d.op_class == "allow"]
    assert sum(d.precision == "bfloat16" for d in products) >= len(products) - 2
    assert len(products) >= 8


def _labels(name: str) -> Any:
    given = models.call(name)
    if name in ("bert", "vit"):
        return torch.tensor([0, 1])
    return given.get("decoder_input_ids", given.get("input_ids"))


def _gradients(one: Any, model: Any, given: Any) -> dict[str, Any]:
    model.zero_grad()
    one(**given).loss.backward()
    named = model.named_parameters()
    return {n: p.grad.clone() for n, p in named if p.grad is not None}


def _off(found: dict[str, Any], expected: dict[str, Any]) -> float:
    assert found.keys() == expected.keys()
    return relative_error(list(found.values()), list(expected.values()))


def test_it_is_copied_pickled_and_moved_but_keeps_its_dtypes(pair: Pair) -> None:
    twin = copy.deepcopy(pair.made).to("cpu")
    expected = pair.made(**pair.given).logits
    assert torch.equal(twin(**pair.given).logits, expected)
    assert all(p.is_meta for p in copy.deepcopy(twin).to("meta").parameters())
    for move in (twin.half, twin.float, lambda: twin.to(torch.bfloat16)):
        with pytest.raises(UnsupportedError, match="convert"):
            move()
    file = io.BytesIO()
    torch.save(amprewrite.convert(pair.model, kwargs=pair.given), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(**pair.given).logits, expected)

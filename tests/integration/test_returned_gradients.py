"""Gradients by what a converted model returns, and by what a forward hook keeps."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import amprewrite
from amprewrite.passes import PLACEMENTS

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

transformers_output = pytest.importorskip("transformers.utils").ModelOutput

ROWS, WIDTH = 512, 256
"""Extents of the activations: large enough to be lowered by the prices of a GPU."""

WITH_ARGS = pytest.mark.parametrize("with_args", [False, True], ids=["lazy", "args"])


class Two(nn.Module):
    """Two linear layers; what is between them is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x) -> Any:
        h = self.a(x)
        return self.b(h), h


class Views(Two):
    """Returns a value twice, and views of it, which are read too."""

    def forward(self, x):
        h = self.a(x)
        v = h.view(ROWS, 2, -1)
        w = v.transpose(1, 2)
        return self.b(h) + self.b(w.reshape(ROWS, -1)), w, v, h, h


class Parts(Two):
    """Returns the parts of a value, and not the value."""

    def forward(self, x):
        one, two = self.a(x).chunk(2, -1)
        return self.b(torch.cat([two.relu(), one], -1)), one, two


class Written(Two):
    """Writes to a value in place, then reads and returns it."""

    def forward(self, x):
        h = self.a(x)
        h.relu_()
        return self.b(h), h


class Aliased(Two):
    """Returns a view of its argument."""

    def forward(self, x):
        h = x.view(ROWS, WIDTH)
        return self.b(self.a(h)), h


class Nested(Two):
    """Returns values deep in containers."""

    def forward(self, x):
        h = self.a(x)
        g = torch.relu(h)
        return {"y": self.b(g), "states": (h, [g, (g.mean(),)])}


@dataclass
class Output(transformers_output):
    """An output as transformers has them."""

    y: Any = None
    hidden_states: Any = None


class States(Two):
    """Returns hidden states in a dataclass."""

    def forward(self, x):
        h = self.a(x)
        return Output(y=self.b(h), hidden_states=(x, h))


class Checkpointed(Two):
    """Reads the value in an activation checkpoint."""

    def forward(self, x):
        h = self.a(x)
        y = checkpoint(lambda t: self.b(t).relu(), h, use_reentrant=False)
        return y + h, h


MODELS = (Two, Views, Parts, Written, Aliased, Nested, States, Checkpointed)


def gradients(model: Any, x: Any) -> tuple[list[Any], list[Any]]:
    """Return the gradients by what is returned, and those that it retains itself."""
    leaves, _ = torch.utils._pytree.tree_flatten(model(x))
    kept = [leaf for leaf in leaves[1:] if leaf.requires_grad]
    for leaf in kept:
        leaf.retain_grad()
    loss = leaves[0].square().sum()
    found = torch.autograd.grad(loss, kept, retain_graph=True, allow_unused=True)
    for leaf in kept:
        leaf.grad = None
    loss.backward()
    return list(found), [leaf.grad for leaf in kept]


def autocast(model: Any) -> Callable[..., Any]:
    """Return a call of ``model`` under autocast."""

    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    return run


def error(found: Any, wanted: Any) -> float:
    difference = (found.float() - wanted).norm() / wanted.norm()
    return float(difference.detach())


def assert_near(model: Any, converted: Any, x: Any) -> None:
    """Gradients are there where the model has them, within twice autocast's error."""
    wanted, cast = gradients(model, x), gradients(autocast(model), x)
    for found, exact, theirs in zip(gradients(converted, x), wanted, cast, strict=True):
        assert [g is None for g in found] == [g is None for g in exact]
        for mine, right, low in zip(found, exact, theirs, strict=True):
            if right is not None:
                assert mine.dtype == right.dtype
                assert error(mine, right) <= 2 * error(low, right) + 1e-6


def convert(model: Any, x: Any, *, with_args: bool, **kwargs: Any) -> Any:
    args = (x,) if with_args else None
    return amprewrite.convert(copy.deepcopy(model), "bf16", args=args, **kwargs)


@pytest.mark.parametrize(
    ("placement", "with_args"), [("promote", False), *((p, True) for p in PLACEMENTS)]
)
@pytest.mark.parametrize("kind", MODELS)
def test_a_returned_value_is_on_the_path(kind, placement, with_args):
    torch.manual_seed(0)
    model, x = kind().train(), torch.randn(ROWS, WIDTH, requires_grad=True)
    converted = convert(
        model, x, with_args=with_args, placement=placement, device="cuda"
    )
    assert_near(model, converted, x)
    assert converted.plan.lowered
    assert converted.plan.training


@pytest.mark.filterwarnings("ignore:rewritten 0 of:amprewrite.errors.AmpWarning")
@pytest.mark.parametrize("options", [{"tolerance": 0.02}, {"placement": "fastest"}])
def test_a_returned_value_is_on_the_path_of_a_measured_plan(options):
    torch.manual_seed(0)
    model, x = Two().train(), torch.randn(ROWS, WIDTH)
    converted = amprewrite.convert(model, "bf16", args=(x,), **options)
    assert_near(model, converted, x)


def test_the_casts_of_a_returned_value_are_in_the_plan_and_its_cost():
    model, args = Two().train(), (torch.randn(ROWS, WIDTH),)
    plan = amprewrite.inspect(model, args=args)
    casts = [(c.from_dtype, c.to_dtype) for c in plan.casts if c.value == "linear"]
    assert casts == [("bfloat16", "float32"), ("float32", "bfloat16")]
    assert "returned" in next(c.why for c in plan.casts if c.value == "linear")
    assert plan.cost.casts == len(plan.runtime_casts)
    low = amprewrite.inspect(model.eval(), args=args)
    assert [c.to_dtype for c in low.casts if c.value == "linear"] == ["float32"]


def test_programs_without_gradients_have_no_cast_more():
    model, x = Two().eval(), torch.randn(ROWS, WIDTH)
    converted = amprewrite.convert(model, "bf16")
    with torch.no_grad():
        converted(x)
    count = len(converted.plan.casts)
    assert len(amprewrite.inspect(model, args=(x,)).casts) == count
    converted = amprewrite.convert(model, "bf16")
    y, h = converted(x)
    assert len(converted.plan.casts) == count + 1
    assert torch.autograd.grad(y.sum(), h)[0].abs().sum() > 0


class Pictures(nn.Module):
    """A network of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def attributions(model: Any, kept: list[Any], x: Any) -> list[Any]:
    """Return CAM's gradients by what a hook kept, in the ways that tools take them."""
    kept.clear()
    score = model(x)[:, 0].sum()
    (activation,) = kept
    by_hook: list[Any] = []
    activation.register_hook(by_hook.append)
    activation.retain_grad()
    score.backward(retain_graph=True)
    retained, activation.grad = activation.grad, None
    asked = torch.autograd.grad(score, activation)[0]
    weights = asked.mean((2, 3), keepdim=True)
    return [retained, by_hook[0], asked, (weights * activation).sum(1)]


@WITH_ARGS
@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", ["features.2", "features.3"])
def test_what_a_hook_keeps_is_on_the_path(layer, training, early, with_args):
    torch.manual_seed(0)
    model, x = Pictures().train(training), torch.randn(2, 3, 8, 8)
    kept: list[Any] = []

    def keep(_part: Any, _args: Any, output: Any) -> None:
        kept.append(output)

    hooked = copy.deepcopy(model)
    hooked.get_submodule(layer).register_forward_hook(keep)
    wanted = attributions(hooked, kept, x)
    low = attributions(autocast(hooked), kept, x)
    if early:
        model.get_submodule(layer).register_forward_hook(keep)
    converted = amprewrite.convert(model, "bf16", args=(x,) if with_args else None)
    if not early:
        converted.get_submodule(layer).register_forward_hook(keep)
    for found, right, theirs in zip(
        attributions(converted, kept, x), wanted, low, strict=True
    ):
        assert error(found, right) <= 2 * error(theirs, right) + 1e-6


def test_a_loss_on_hidden_states_trains_as_the_model_does():
    """Feature matching: a term on what is returned, beside the output's."""
    torch.manual_seed(0)
    model, x = States().train(), torch.randn(ROWS, WIDTH)

    def loss_gradients(call: Callable[..., Any], owner: Any) -> list[Any]:
        out = call(x)
        loss = out.y.square().sum() + (out.hidden_states[1] - 1).square().sum()
        penalty = torch.autograd.grad(loss, out.hidden_states[1], create_graph=True)
        (loss + penalty[0].square().sum()).backward()
        found = [parameter.grad for parameter in owner.parameters()]
        owner.zero_grad()
        return found

    wanted = loss_gradients(model, model)
    low = loss_gradients(autocast(model), model)
    converted = amprewrite.convert(model, "bf16", args=(x,))
    for found, right, theirs in zip(
        loss_gradients(converted, converted), wanted, low, strict=True
    ):
        assert error(found, right) <= 2 * error(theirs, right) + 1e-6


@pytest.mark.slow
@WITH_ARGS
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_probes_of_hidden_states_of_transformers(name, with_args):
    import transformers

    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 7))
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        )  # fmt: skip
        model = transformers.BertModel(config).train()
    else:
        config = transformers.GPT2Config(
            vocab_size=50, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model = transformers.GPT2Model(config).train()
    kwargs = {"input_ids": ids, "output_hidden_states": True}

    def probes(call: Callable[..., Any]) -> list[Any]:
        out = call(**kwargs)
        for state in out.hidden_states:
            state.retain_grad()
        out.last_hidden_state.square().mean().backward()
        return [state.grad for state in out.hidden_states[:-1]]

    def low(**kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(**kwargs)

    given = {"args": (), "kwargs": kwargs} if with_args else {}
    converted = amprewrite.convert(copy.deepcopy(model), "bf16", **given)
    for found, right, theirs in zip(
        probes(converted), probes(model), probes(low), strict=True
    ):
        assert error(found, right) <= 2 * error(theirs, right)

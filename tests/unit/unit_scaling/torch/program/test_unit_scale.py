"""The pass on models of torch: valid gradients, unit scales, any batch."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the usual name

import amprewrite
from amprewrite.errors import ArgumentError, UnitScalingError, UnsupportedError
from amprewrite.unit_scaling import check_gradient_validity, rule

V, D, T = 40, 32, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (z.unflatten(-1, (4, -1)).transpose(1, 2) for z in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 128, bias=False), nn.Linear(64, D)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, -1)
        return self.down(value * F.silu(gate))


class Block(nn.Module):
    def __init__(self, parallel):
        super().__init__()
        self.parallel = parallel
        self.one, self.two = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention, self.mlp = Attention(), SwiGLU()

    def forward(self, x):
        if self.parallel:
            z = self.one(x)
            return x + self.attention(z) + self.mlp(self.two(z))
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class GPT(nn.Module):
    """Token and position embeddings, a tied readout, SwiGLU."""

    def __init__(self, *, parallel=False):
        super().__init__()
        self.token, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList([Block(parallel) for _ in range(2)])
        self.norm = nn.LayerNorm(D)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3, stride=2)
        self.norm, self.out = nn.BatchNorm2d(16), nn.Linear(32, 10)

    def forward(self, x, targets):
        x = F.relu(self.norm(self.one(x)), inplace=True)
        x = F.gelu(F.max_pool2d(self.two(x), 2))
        return F.cross_entropy(self.out(x.mean((2, 3))), targets)


def tokens(batch=4):
    return tuple(torch.randint(V, (2, batch, T)))


def images(batch=4):
    return torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    gpt, parallel, cnn = GPT(), GPT(parallel=True), CNN()
    return {"gpt": (gpt, tokens), "parallel": (parallel, tokens), "cnn": (cnn, images)}


@pytest.fixture(scope="module")
def scaled(models):
    return {
        name: amprewrite.unit_scale(model, draw())
        for name, (model, draw) in models.items()
    }


NAMES = pytest.mark.parametrize("name", ["gpt", "parallel", "cnn"])


def wrong(model, args):
    found = check_gradient_validity(model, args)
    return [key for key, cosine in found.items() if cosine < 0.9999], found


@NAMES
def test_gradients_are_true(models, scaled, name):
    bad, found = wrong(scaled[name], models[name][1]())
    assert not bad
    assert sum(map(math.isnan, found.values())) <= 2


@pytest.mark.parametrize("name", ["gpt", "parallel"])
def test_gradients_are_wrong_without_the_cut_edge_rule(models, name):
    model, draw = models[name]
    free = amprewrite.unit_scale(model, draw(), constraint=None)
    assert len(wrong(free, draw())[0]) > 10


@NAMES
def test_gradients_have_unit_scale(models, scaled, name):
    model, draw = scaled[name], models[name][1]
    model.zero_grad()
    model(*draw(16)).backward()
    stds = {n: float(p.grad.std()) for n, p in model.named_parameters() if p.dim() > 1}
    assert all(0.05 < std < 20 for std in stds.values()), stds


@NAMES
def test_another_batch_gives_the_mean_loss_by_the_same_program(models, scaled, name):
    model, draw = copy.deepcopy(scaled[name]).eval(), models[name][1]
    large = draw(8)
    model(*draw())
    captured = len(vars(model)["_amprewrite_scaled"].found)
    parts = [model(*(x[i : i + 4] for x in large)).item() for i in (0, 4)]
    assert model(*large).item() == pytest.approx(sum(parts) / 2, rel=1e-5)
    assert len(vars(model)["_amprewrite_scaled"].found) == captured


def test_gradients_follow_the_batch_of_the_call(scaled):
    model, few = scaled["gpt"], tokens(4)
    weight = model.blocks[0].mlp.down.weight
    grads = []
    for args in (few, tuple(x.repeat(4, 1) for x in few)):
        model.zero_grad()
        model(*args).backward()
        grads.append(weight.grad.clone())
    # 4 equal copies: sums over tokens are 4 times as large, the factor is half.
    torch.testing.assert_close(grads[1], 2 * grads[0], rtol=1e-4, atol=1e-4)


def test_residual_additions_are_found(scaled):
    assert len(scaled["gpt"].scales.residuals) == 4
    assert len(scaled["parallel"].scales.residuals) == 4
    assert not scaled["cnn"].scales.residuals


def test_the_copy_is_of_the_models_class_and_the_model_unchanged(models, scaled):
    model, copied = models["gpt"][0], scaled["gpt"]
    assert issubclass(type(copied), GPT)
    assert list(copied.state_dict()) == list(model.state_dict())
    assert model.token.weight.std() != copied.token.weight.std()
    assert copied.blocks[0].mlp.up.weight.std().item() == pytest.approx(1, rel=1e-4)
    assert not copied.blocks[0].mlp.down.bias.any()
    assert "forward" not in vars(model)


def test_weights_stay_without_init(models):
    model, draw = models["cnn"]
    found = amprewrite.unit_scale(model, draw(), init=False).state_dict()
    assert all(torch.equal(x, found[name]) for name, x in model.state_dict().items())


def test_replaced_weights_are_used(scaled):
    model, args = copy.deepcopy(scaled["gpt"]), tokens()
    before = model(*args)
    zeros = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    model.load_state_dict(zeros, assign=True)
    assert model(*args).item() == pytest.approx(math.log(V))
    assert before.item() != pytest.approx(math.log(V))


class Elementwise(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        return self.function(x.view_as(x)) + self.weight


def factors(model, args, **options):
    made = amprewrite.unit_scale(model, args, **options)
    found = made.scales
    forward = [s.forward for s in found if s.index is None]
    backward = [s.backward for s in found if s.index is not None]
    return forward, backward, set(found.rules.values())


def written_out(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x):
        first = self.linear(x).mean()
        return first, 0.1 * first + first.exp() / 7 + 1 / first


def test_weights_of_losses_are_those_of_the_model():
    x = torch.randn(8, D)
    made = amprewrite.unit_scale(Weighted(), (x,))
    first, whole = made(x)
    wanted = 0.1 * first + first.exp() / 7 + 1 / first
    torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-5)
    assert min(check_gradient_validity(made, (x,)).values()) > 0.9999


def test_a_written_out_gelu_has_the_factors_of_gelu():
    x = torch.randn(4, 64)
    forward, _, kinds = factors(Elementwise(written_out), (x,))
    assert forward == pytest.approx([rule("gelu")[0]], rel=1e-6)
    assert kinds == {"closed form", "quadrature"}
    forward, backward, _ = factors(Elementwise(F.gelu), (x,), constraint=None)
    assert forward == pytest.approx([rule("gelu")[0]])
    assert rule("gelu")[1] in [pytest.approx(b) for b in backward]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: torch.where((x > 0) & (x < 1e9), x, torch.zeros_like(x)),
        lambda x: x * (x > 0).float(),
        lambda x: x.masked_fill(x < 0, 0.0),
    ],
)
def test_a_choice_by_the_sign_has_the_factor_of_relu(spelling):
    forward, *_ = factors(Elementwise(spelling), (torch.randn(4, 64),))
    assert forward == pytest.approx([rule("relu")[0]], rel=1e-6)


def test_a_multiplier_is_undone():
    x = torch.randn(4, 64)
    plain = amprewrite.unit_scale(Elementwise(F.relu), (x,))
    steep = amprewrite.unit_scale(Elementwise(F.relu), (x,), mult={"relu": 4.0})
    torch.testing.assert_close(plain(x), steep(x))  # relu knows no scale
    curve = amprewrite.unit_scale(Elementwise(F.softplus), (x,), mult={"softplus": 4.0})
    y = curve(x)
    want = F.softplus(4 * x) / 4 * rule("softplus", 4.0)[0]
    torch.testing.assert_close(y, want + 1, rtol=1e-4, atol=1e-4)


def test_a_mask_of_attention_is_measured():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x, mask):
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    model = amprewrite.unit_scale(Masked(), (torch.randn(4, 8, 16), mask))
    kinds = set(model.scales.rules.values())
    assert "empirical" in kinds
    assert model(torch.randn(256, 8, 16), mask).square().mean() < 4


def test_it_converts(scaled):
    model, args = copy.deepcopy(scaled["gpt"]), tokens()
    low = amprewrite.convert(model, "bf16", args=args)
    want, found = model(*args), low(*args)
    torch.testing.assert_close(found, want, rtol=0.02, atol=0.02)
    assert low.casts
    found.backward()
    want.backward()


class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return torch.linalg.cholesky(x @ self.weight)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"constraint": "gmeen"}, "unknown constraint 'gmeen'.*did you mean 'gmean'"),
        ({"tau": 0.0}, "tau is 0.0; want a weight above 0"),
        ({"mult": {"silly": 2.0}}, "mult names silly; want elementwise ops"),
    ],
)
def test_wrong_requests_are_refused(models, options, match):
    model, draw = models["cnn"]
    with pytest.raises(UnitScalingError, match=match):
        amprewrite.unit_scale(model, draw(), **options)


def test_an_op_without_a_rule_is_refused():
    with pytest.raises(UnitScalingError, match="no rule of unit scaling for aten"):
        amprewrite.unit_scale(Sorts(), (torch.eye(4),))


def test_what_is_rewritten_already_or_no_model_is_refused(models, scaled):
    with pytest.raises(UnsupportedError, match="unit-scaled already"):
        amprewrite.unit_scale(scaled["cnn"], images())
    low = amprewrite.convert(copy.deepcopy(models["cnn"][0]), args=images())
    with pytest.raises(UnsupportedError, match="converted already"):
        amprewrite.unit_scale(low, images())
    with pytest.raises((UnsupportedError, ArgumentError), match="not a int"):
        amprewrite.unit_scale(3, ())

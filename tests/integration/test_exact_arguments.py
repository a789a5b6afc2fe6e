"""Arguments that have to be exact, in torch: what computes them is never rounded."""

import pytest

import amprewrite

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")

PLACEMENTS = ("promote", "paint", "optimal")
BINS = torch.linspace(-300, 300, 6001)


class Model(nn.Module):
    """A function of an input and of two matrices, the first of them a rotation."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(0)
        square = torch.randn(3, 3, generator=generator)
        self.register_buffer("turn", torch.linalg.qr(square)[0])
        self.register_buffer("wide", torch.randn(3, 8, generator=generator) * 8)
        self.register_buffer("bins", BINS)
        self.register_buffer("kernel", torch.ones(1, 1, 4) / 3)

    def forward(self, x):
        return self.function(self, x)


def points():
    return torch.rand(32, 3, generator=torch.Generator().manual_seed(1)) * 30


def assigned(y):
    """A tensor into which ``y`` is written, through a view."""
    made = torch.zeros(32, 9)
    made[:, 1:] = y
    made *= 2
    return made


STEPS = {
    "product": lambda m, y: y @ m.turn @ m.wide,
    "linear": lambda m, y: functional.linear(y @ m.turn, m.wide.T),
    "einsum": lambda m, y: torch.einsum("bi,ij,jk->bk", y, m.turn, m.wide),
    "baddbmm": lambda m, y: torch.baddbmm((y @ m.wide)[None], y[None], m.wide[None]),
    "sum": lambda m, y: (y @ m.wide).sum(-1),
    "mean": lambda m, y: (y @ m.wide).mean(-1) * 9,
    "cumsum": lambda m, y: (y @ m.wide).cumsum(0),
    "norm": lambda m, y: (y @ m.wide).norm(dim=-1),
    "root of squares": lambda m, y: ((y @ m.turn) ** 2).sum(-1).sqrt(),
    "cdist": lambda m, y: torch.cdist(y @ m.wide, y @ m.wide),
    "amin": lambda m, y: (y @ m.wide).amin(-1),
    "min": lambda m, y: (y @ m.wide).min(-1).values,
    "direction": lambda m, y: 40 * functional.normalize(y @ m.wide, dim=-1),
    "clamp": lambda m, y: (y @ m.wide).clamp(0, 250),
    "conv": lambda m, y: functional.conv1d((y @ m.wide)[:, None], m.kernel),
    "conv_transpose": lambda m, y: functional.conv_transpose1d(
        (y @ m.wide)[:, None], m.kernel
    ),
    "interpolate": lambda m, y: functional.interpolate(
        (y @ m.wide)[:, None], scale_factor=2.0, mode="linear"
    ),
    "avg_pool": lambda m, y: functional.avg_pool1d((y @ m.wide)[:, None], 2),
    "rfft": lambda m, y: torch.fft.rfft(y @ m.wide).real,
    "sort": lambda m, y: (y @ m.wide).sort(-1).values,
    "gather": lambda m, y: (y @ m.wide)[:, [1, 0, 3]],
    "written": lambda m, y: torch.zeros(32, 8).add_(y @ m.turn @ m.wide),
    "assigned": lambda m, y: assigned(y @ m.wide),
    "checkpoint": lambda m, y: torch.utils.checkpoint.checkpoint(
        lambda z: z @ m.wide, y @ m.turn, use_reentrant=False
    ),
}
"""Linear steps between a product and the op that needs an exact argument."""

READERS = {
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "sinc": torch.sinc,
    "exp": lambda y: torch.exp(1j * y).real,
    "polar": lambda y: torch.polar(torch.ones_like(y), y).imag,
    "round": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "fmod": lambda y: torch.fmod(y, 7),
    "remainder": lambda y: y % 7,
    "floor_divide": lambda y: y // 0.7,
    "rounding_mode": lambda y: torch.div(y, 0.7, rounding_mode="trunc"),
    "long": lambda y: y.long(),
    "index": lambda y: BINS[y.long() % 999],
    "embedding": lambda y: functional.embedding(y.long() % 999, BINS[:, None]),
    "bucketize": lambda y: torch.bucketize(y, BINS),
    "searchsorted": lambda y: torch.searchsorted(BINS, y.contiguous()),
    "histc": lambda y: torch.histc(y, 50, -300, 300),
    "bincount": lambda y: torch.bincount((y.flatten() % 50).long()),
}
"""Ops that need an exact argument."""


def check(function, placement="promote", **request):
    model, x = Model(function).eval(), points()
    wanted = model(x).double()
    args = None if request else (x,)
    converted = amprewrite.convert(model, args=args, placement=placement)
    error = (converted(x).double() - wanted).norm() / wanted.norm()
    assert error < 1e-5
    return converted.plan


@pytest.mark.parametrize("step", STEPS)
def test_exactness_passes_through_a_linear_step(step):
    plan = check(lambda m, x: torch.sin(STEPS[step](m, x)))
    assert not plan.lowered


@pytest.mark.parametrize("reader", READERS)
def test_an_op_needs_an_exact_argument(reader):
    plan = check(lambda m, x: READERS[reader]((x @ m.turn) @ m.wide))
    assert not plan.lowered


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("step", ["product", "cumsum", "cdist", "conv_transpose"])
def test_all_placements_keep_an_exact_argument(step, placement):
    plan = check(lambda m, x: torch.floor(STEPS[step](m, x)), placement)
    (first, *_) = (d for d in plan.decisions if d.op_class == "allow")
    assert first.why == "floor needs an exact argument: its producers stay full"
    assert first.causes[-1] == "floor"
    assert "needs an exact argument" in plan.explain(first.op)


@pytest.mark.parametrize("step", ["product", "cumsum", "assigned"])
def test_an_argument_is_exact_without_args(step):
    check(lambda m, x: torch.sin(STEPS[step](m, x)), lazily=True)


def test_positions_in_an_image_are_exact():
    def read(m, x):
        image = m.bins[:3600].reshape(1, 1, 60, 60)
        grid = (torch.tanh(x[None, :, None, :2]) @ m.turn[:2, :2]) / 1.5
        return functional.grid_sample(image, grid, align_corners=False)

    check(read)


def test_an_image_that_is_read_at_positions_may_be_low():
    class Warp(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.last = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1)

        def forward(self, image, grid):
            return functional.grid_sample(self.last(self.features(image)), grid)

    args = (torch.randn(1, 1, 8, 8), torch.rand(1, 4, 4, 2))
    plan = amprewrite.inspect(Warp().eval(), args=args)
    assert len(plan.lowered) == 2


NETWORKS = {
    "tanh": lambda h, y: torch.tanh(h(y)) * 3.5,
    "relu": lambda h, y: functional.relu(h(y)) * 4,
    "sigmoid": lambda h, y: torch.sigmoid(h(y)) * 7,
    "leaky_relu": lambda h, y: functional.leaky_relu(h(y)),
    "softmax": lambda h, y: torch.softmax(h(y), -1) * 8,
    "layer_norm": lambda h, y: functional.layer_norm(h(y), (8,)),
    "own norm": lambda h, y: (
        (z := h(y)) * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)
    ),
    "own silu": lambda h, y: (z := h(y)) * torch.sigmoid(z),
    "own softmax": lambda h, y: (e := torch.exp(h(y))) / e.sum(-1, keepdim=True) * 8,
    "attention": lambda h, y: functional.scaled_dot_product_attention(
        *[h(y)[None]] * 3
    ),
}
"""Networks that end in something bent, before a code."""


@pytest.mark.parametrize("placement", ["promote", "paint"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_before_a_code_stays_low(network, placement):
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 8)

        def forward(self, x):
            return torch.round(4 * self.last(NETWORKS[network](self.first, x)))

    plan = amprewrite.inspect(Coded().eval(), args=(points(),), placement=placement)
    linears = [d for d in plan.decisions if d.canonical == "linear"]
    assert [d.precision for d in linears] == ["bfloat16", "float32"]


def test_a_quantiser_with_learned_steps_stays_low():
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.two, self.step = nn.Conv2d(8, 8, 3), nn.Parameter(torch.tensor(0.1))

        def forward(self, x):
            h = functional.relu(self.norm(self.one(x)))
            h = torch.round(torch.clamp(h / self.step, 0, 255)) * self.step
            return self.two(h)

    args = (torch.randn(1, 3, 8, 8),)
    plan = amprewrite.inspect(Quantised().eval(), args=args)
    assert [plan.by_op[name].precision for name in ("conv2d", "conv2d_1")] == [
        *("bfloat16", "bfloat16"),
    ]


def test_the_nearest_code_leaves_its_network_low():
    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.book = nn.Linear(3, 8), nn.Embedding(16, 8)

        def forward(self, x):
            distances = torch.cdist(self.one(x), self.book.weight)
            return self.book(distances.argmin(-1))

    plan = amprewrite.inspect(Codes().eval(), args=(points(),))
    assert plan.by_op["linear"].precision == "bfloat16"


def test_a_straight_through_quantiser_of_a_product_is_exact():
    def through(m, x):
        y = x @ m.turn @ m.wide
        return y + (y.round() - y).detach()

    for placement in PLACEMENTS:
        check(through, placement)


def test_a_rule_that_rounds_an_exact_argument_is_told():
    overrides = [{"op": "sin", "class": "allow"}]
    model = Model(lambda m, x: torch.sin(x @ m.wide) @ m.wide.T).eval()
    plan = amprewrite.inspect(model, args=(points(),), overrides=overrides)
    assert plan.by_op["sin"].precision == "bfloat16"
    (line,) = (w for w in plan.warnings if "rounds an argument of sin" in w)
    assert line.startswith("overrides[0]")


class Solver(nn.Module):
    """Jacobi's iteration, ended by a residual, in a loop of some kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        square = torch.randn(24, 24, generator=torch.Generator().manual_seed(2))
        self.register_buffer("matrix", square @ square.T / 24 + torch.eye(24))

    def forward(self, b):
        matrix = self.matrix

        def goes_on(x, n):
            return ((b - x @ matrix).norm() > 1e-4) & (n < 1000)

        def turn(x, n):
            return x + 0.2 * (b - x @ matrix), n + 1

        state = torch.zeros_like(b), torch.tensor(0)
        if self.kind == "while_loop":
            state = torch._higher_order_ops.while_loop(goes_on, turn, state)
        while self.kind == "Python" and goes_on(*state):
            state = turn(*state)
        return state[0], state[1] + 0


@pytest.mark.parametrize("kind", ["while_loop", "Python"])
def test_a_loop_over_a_residual_ends_as_in_full_precision(kind):
    model, b = Solver(kind).eval(), torch.ones(24)
    wanted, turns = model(b)
    found, taken = amprewrite.convert(model)(b)
    assert taken == turns
    assert 5 < turns < 1000
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_step_that_says_if_it_is_done_is_exact():
    class Stepping(Solver):
        def forward(self, b):
            x = b
            new = x + 0.2 * (1 - x @ self.matrix)
            return new, (new - x).abs().max() < 1e-5

    step, turns = Stepping("").eval(), []
    for run in (step, amprewrite.convert(step, args=(torch.zeros(24),))):
        x, done, turn = torch.zeros(24), False, 0
        while not done and turn < 1000:
            (x, done), turn = run(x), turn + 1
        turns.append(turn)
    assert turns[0] == turns[1] < 1000

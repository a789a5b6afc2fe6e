"""Arguments that have to be exact, in JAX: what computes them is never rounded."""

import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

pytestmark = pytest.mark.filterwarnings(
    "ignore:rewritten 0 of", "ignore:casts to float32 that the function may write"
)

PLACEMENTS = ("promote", "paint", "optimal")
KEYS = jax.random.split(jax.random.key(0), 4)
WIDE = jax.random.normal(KEYS[0], (3, 8)) * 8
TURN = jnp.linalg.qr(jax.random.normal(KEYS[1], (3, 3)))[0]
X = jax.random.uniform(KEYS[2], (32, 3)) * 30
BINS = jnp.linspace(-300, 300, 4001)


@jax.custom_vjp
def product(x):
    return x @ WIDE


product.defvjp(lambda x: (x @ WIDE, None), lambda _, g: (g @ WIDE.T,))


@jax.custom_jvp
def turned(x):
    return x @ TURN


@turned.defjvp
def _(primals, tangents):
    return primals[0] @ TURN, tangents[0] @ TURN


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def meshed(x):
    mesh = jax.make_mesh((1,), ("a",))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(
        lambda y: (y @ TURN) @ WIDE, mesh=mesh, in_specs=spec, out_specs=spec
    )(x)


def scanned(x):
    """Sines of a carry, one for each step."""
    step = lambda c, a: (c + a @ WIDE, jnp.sin(c))  # noqa: E731
    return lax.scan(step, jnp.zeros(8), x)[1]


STEPS = {
    "product": lambda x: x @ TURN @ WIDE,
    "einsum": lambda x: jnp.einsum("bi,ij,jk->bk", x, TURN, WIDE),
    "sum": lambda x: (x @ WIDE).sum(-1),
    "mean": lambda x: (x @ WIDE).mean(-1) * 9,
    "cumsum": lambda x: jnp.cumsum(x @ WIDE, 0),
    "norm": lambda x: jnp.linalg.norm(x @ WIDE, axis=-1),
    "max": lambda x: (x @ WIDE).max(-1),
    "clip": lambda x: jnp.clip(x @ WIDE, 0, 250),
    "conv": lambda x: lax.conv((x @ WIDE)[:, None], jnp.ones((1, 1, 3)), (1,), "SAME"),
    "rfft": lambda x: jnp.fft.rfft(x @ WIDE).real,
    "carry": lambda x: lax.scan(lambda c, a: (c + a @ WIDE, None), jnp.zeros(8), x)[0],
    "fori": lambda x: lax.fori_loop(
        0, 4, lambda _, c: c + x @ WIDE, jnp.zeros((32, 8))
    ),
    "nested": lambda x: lax.scan(
        lambda c, a: (lax.fori_loop(0, 2, lambda _, d: d + a @ WIDE, c), None),
        jnp.zeros(8),
        x,
    )[0],
    "custom_vjp": product,
    "custom_jvp": lambda x: turned(x) @ WIDE,
    "jit": lambda x: jax.jit(lambda y: y @ WIDE)(x @ TURN),
    "vmap": jax.vmap(lambda a: (a @ WIDE).cumsum()),
    "checkpoint": lambda x: jax.checkpoint(lambda y: y @ WIDE)(x @ TURN),
    "map": lambda x: lax.map(lambda a: (a @ TURN) @ WIDE, x),
    "shard_map": meshed,
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x @ WIDE),
}
"""Linear steps between a product and the op that needs an exact argument."""
STEPS["cond"] = lambda x: lax.cond(
    x.sum() > 0, lambda: (x @ WIDE).cumsum(0), lambda: x @ WIDE
)

READERS = {
    "cos": jnp.cos,
    "exp": lambda y: jnp.exp(1j * y).real,
    "round": jnp.round,
    "mod": lambda y: jnp.mod(y, 7),
    "rem": lambda y: lax.rem(y, 7.0),
    "floor_divide": lambda y: y // 0.7,
    "astype": lambda y: y.astype(int),
    "take": lambda y: jnp.take(BINS, y.astype(int) % 999),
    "searchsorted": lambda y: jnp.searchsorted(BINS, y),
    "unrolled": lambda y: jnp.searchsorted(BINS, y, method="scan_unrolled"),
    "sorted": lambda y: jnp.searchsorted(BINS, y, method="sort"),
    "all compared": lambda y: jnp.searchsorted(BINS, y, method="compare_all"),
    "digitize": lambda y: jnp.digitize(y, BINS),
    "interp": lambda y: jnp.interp(y, BINS, jnp.sin(3 * BINS)),
    "histogram": lambda y: jnp.histogram(y, 50)[0],
    "through": rounded,
}
"""Ops that need an exact argument."""


def check(function, placement="promote", x=X):
    converted = amprewrite.convert(function, args=(x,), placement=placement)
    wanted = function(x) * 1.0
    assert jnp.linalg.norm(converted(x) - wanted) < 1e-5 * jnp.linalg.norm(wanted)
    return converted.plan


@pytest.mark.parametrize("step", STEPS)
def test_exactness_passes_through_a_linear_step(step):
    plan = check(lambda x: jnp.sin(STEPS[step](x)))
    assert not plan.lowered


def test_exactness_goes_round_a_carry_to_what_each_step_reads():
    check(scanned)


@pytest.mark.parametrize("reader", READERS)
def test_an_op_needs_an_exact_argument(reader):
    plan = check(lambda x: READERS[reader](x @ TURN @ WIDE))
    assert not plan.lowered


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("step", ["product", "carry", "custom_vjp"])
def test_all_placements_keep_an_exact_argument(step, placement):
    plan = check(lambda x: jnp.floor(STEPS[step](x)), placement)
    first = next(d for d in plan.decisions if d.canonical == "matmul")
    assert first.why == "floor needs an exact argument: its producers stay full"
    assert first.causes[-1] == "floor"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_rounded_product_is_not_said_to_cost_more_than_it_saves(placement):
    function = lambda x: jnp.floor(x @ WIDE)  # noqa: E731
    plan = amprewrite.inspect(function, args=(X,), placement=placement)
    (line,) = (w for w in plan.warnings if w.startswith("rewritten 0"))
    assert "floor needs an exact argument" in line
    assert "floor needs an exact argument" in plan.explain("dot_general")


def mlp(activation):
    def run(x):
        return jnp.round(activation(x @ WIDE) @ WIDE.T)

    return run


def rms_norm(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def own_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "softmax": jax.nn.softmax,
    "rms_norm": rms_norm,
    "own norm": own_norm,
    "own silu": lambda h: h * (1 / (1 + jnp.exp(-h))) * jax.nn.sigmoid(h),
    "own softmax": lambda h: jnp.exp(h) / jnp.exp(h).sum(-1, keepdims=True),
    "attention": lambda h: jax.nn.dot_product_attention(*[h[None, :, None]] * 3)[
        0, :, 0
    ],
}
"""What a network before a code ends in."""


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_network_before_a_code_stays_low(activation):
    plan = amprewrite.inspect(mlp(ACTIVATIONS[activation]), args=(X,))
    products = [d.precision for d in plan.decisions if d.canonical == "matmul"]
    assert products[-1] == "float32"
    assert set(products[:-1]) == {"bfloat16"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.where(x @ WIDE > 0, x @ WIDE, 0) @ WIDE.T,
        lambda x: ((x @ WIDE) * (x @ WIDE > 0)).mean(),
        lambda x: jnp.argmax(x @ WIDE, -1),
        lambda x: lax.top_k(x @ WIDE, 2),
        lambda x: (x @ WIDE > 0).sum(),
        jax.grad(lambda x: jnp.abs(x @ WIDE).sum()),
    ],
)
def test_comparisons_make_nothing_exact(function):
    plan = amprewrite.inspect(function, args=(X,))
    products = [d.precision for d in plan.decisions if d.canonical == "matmul"]
    assert set(products) == {"bfloat16"}


def test_sampling_from_a_network_leaves_it_low():
    def sample(x):
        return jnp.searchsorted(jnp.cumsum(jax.nn.softmax(x @ WIDE)[0]), 0.5)

    plan = amprewrite.inspect(sample, args=(X,))
    assert plan.by_op["dot_general"].precision == "bfloat16"


def with_more(x):
    """A custom rule with a result that nothing reads exactly, and a number."""
    return product_and_sum(x)[0]


@jax.custom_vjp
def product_and_sum(x):
    return x @ WIDE, (x @ TURN).sum()


product_and_sum.defvjp(
    lambda x: ((x @ WIDE, (x @ TURN).sum()), (None, 2.0)),
    lambda _, g: (g[0] @ WIDE.T,),
)

RULES = {
    "custom_vjp": product,
    "custom_jvp": lambda x: turned(x) @ WIDE,
    "two results": with_more,
    "in a scan": lambda x: lax.scan(
        lambda c, a: (c + product(a), None), jnp.zeros(8), x
    )[0],
    "in a checkpoint": jax.checkpoint(product),
}
"""Functions whose own rules compute the value when they are differentiated."""


@pytest.mark.parametrize("rule", RULES)
def test_the_value_beside_a_gradient_is_exact(rule):
    function = lambda x: jnp.sin(RULES[rule](x)).sum()  # noqa: E731
    wanted = jax.value_and_grad(function)(X)
    for found in (
        jax.value_and_grad(amprewrite.convert(function))(X),
        amprewrite.convert(jax.value_and_grad(function))(X),
    ):
        assert abs(found[0] - wanted[0]) < 1e-4 * abs(wanted[0])
        error = jnp.linalg.norm(found[1] - wanted[1]) / jnp.linalg.norm(wanted[1])
        assert error < 2e-2


def test_a_rule_whose_results_need_not_be_exact_is_low():
    converted = amprewrite.convert(lambda x: jnp.tanh(product(x)).sum())
    assert "bf16[32,3]" in str(jax.make_jaxpr(jax.grad(converted))(X))

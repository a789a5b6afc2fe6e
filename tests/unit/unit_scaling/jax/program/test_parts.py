"""The parts of the pass on functions of JAX, each by itself."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import check_gradient_validity, derive_rule
from amprewrite.unit_scaling.graph.assign import UnitRule
from amprewrite.unit_scaling.graph.units import find_units
from amprewrite.unit_scaling.jax.program.insert import (
    ScaleWriter,
    insert_scales,
    refuse_complex,
)
from amprewrite.unit_scaling.jax.program.op_rules import Call, rule_by_name
from amprewrite.unit_scaling.jax.program.rules import (
    Known,
    find_rules,
    op_by_sample,
    region_rule,
)
from amprewrite.unit_scaling.jax.program.scaled_function import (
    ScaledFunction,
    unit_scale,
)
from amprewrite.unit_scaling.jax.reading.functions import with_functions
from amprewrite.unit_scaling.jax.reading.program import read_program
from amprewrite.unit_scaling.jax.weights import unit_init
from amprewrite.unit_scaling.program import Settings

W = np.ones((24, 48), np.float32)
X = np.ones((4, 8, 24), np.float32)


def program(function, *args):
    closed = jax.make_jaxpr(function)(*args)
    return with_functions(read_program(closed, "input_{}".format, {0: "parameter"}))


def call(function, *args, which=-1):
    found = program(function, *args)
    return Call(found.live.ops[which], found)


def rule(function, *args, which=-1):
    found = rule_by_name(call(function, *args, which=which))
    assert found is not None
    return found.forward, dict(found.backward)


def test_a_contraction_has_the_rule_of_its_extents():
    forward, backward = rule(lambda w, x: x @ w, W, X)
    assert (forward, backward) == (24**-0.5, {0: 48**-0.5, 1: 32**-0.5})
    batched = rule(lambda w, x: jnp.einsum("bij,bkj->bik", x, w), X, X[:, :2])
    assert batched == (24**-0.5, {0: 8**-0.5, 1: 2**-0.5})


def test_a_convolution_has_the_rule_of_torch_in_every_layout():
    image, kernel = (
        np.ones((2, 16, 16, 3), np.float32),
        np.ones((3, 3, 3, 8), np.float32),
    )

    def last(w, x):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    def first(w, x):
        return lax.conv(x, w, (1, 1), "SAME")

    one = rule(last, kernel, image)
    assert one[0] == pytest.approx(27**-0.5)
    swapped = kernel.transpose(3, 2, 0, 1), image.transpose(0, 3, 1, 2)
    assert rule(first, *swapped) == one


def test_tables_copies_sums_and_means():
    ids = np.zeros((4, 8), np.int32)
    assert rule(lambda w: w[ids], W) == (1.0, {0: pytest.approx((24 / 32) ** 0.5)})
    copied = rule(lambda w: jnp.broadcast_to(w, (9, 24, 48)), W)
    assert copied == (1.0, {0: pytest.approx(1 / 3)})
    assert rule(lambda x: x.sum(-1), X) == (24**-0.5, {})
    assert rule(lambda x: x.sum(0), X) == (1.0, {})
    assert rule(lambda x: x.mean(), X) == (1.0, {0: X.size})


def test_a_bias_gets_a_term_from_each_row():
    forward, backward = rule(lambda b, x: x + b, W[0, :24], X)
    assert (forward, backward) == (1.0, {1: 32**-0.5})
    assert rule(lambda w, x: w + x, X, X)[0] == 2**-0.5


def test_a_sample_measures_what_has_no_rule():
    found = op_by_sample(call(lambda x: jnp.sort(x, -1), X), [0])
    assert (found.forward, found.backward[0]) == pytest.approx((1, 1), rel=0.01)
    assert found.kind == "empirical"
    found = program(lambda x: jnp.linalg.cholesky(x @ x), W[:, :24])
    (op,) = [op for op in found.live.ops if op.native == "cholesky"]
    with pytest.raises(UnitScalingError, match=r"no rule.*for cholesky.*stop_gradient"):
        op_by_sample(Call(op, found), [0])


def test_a_region_is_looked_up_or_integrated():
    found = program(jnp.tanh, X)
    (unit,) = find_units(found.live, found.elementwise)
    got, name = region_rule(found, unit, Call(unit.ops[-1], found), {"tanh": 2.0})
    assert (name, got.mult) == ("tanh", 2.0)
    assert got.forward == derive_rule("tanh", 2.0).factors.forward
    with pytest.raises(UnitScalingError, match=r"mult names gelu; want .*: tanh"):
        find_rules(found, (unit,), frozenset(), {"gelu": 2.0}, Known())
    rules = find_rules(found, (unit,), frozenset(), {}, Known())
    assert isinstance(rules[unit.name], UnitRule)


def test_a_writer_runs_the_program_with_its_factors():
    closed = jax.make_jaxpr(lambda w, x: x @ w)(W, X)
    scaled = insert_scales(closed, "input_{}".format, {0: "parameter"}, Settings())
    assert isinstance(scaled.writer, ScaleWriter)
    (y,) = scaled.writer([W, X])
    np.testing.assert_allclose(y, X @ W * 24**-0.5, rtol=1e-6)
    refuse_complex(scaled.writer.reading.graph)


def test_programs_are_kept_by_signature():
    run = ScaledFunction(lambda w, x: x @ w, Settings())
    first, *_ = run.prepare((W, X), {})
    assert run.prepare((W, X), {})[0] is first
    assert run.prepare((W, X[:2]), {})[0] is not first


def test_a_function_keeps_its_parameters_and_they_are_initialised_apart():
    run = unit_scale(lambda w, x: x @ w, (W, X), {}, Settings(), init=True)
    assert isinstance(run, ScaledFunction)
    found = unit_init({"w": np.arange(6.0, dtype=np.float32).reshape(2, 3)})
    assert float(found["w"].std()) == pytest.approx(1)


def squared(h, y):
    return jnp.square(h - y).mean()


def divergence(h, y):
    p, logs = jax.nn.softmax(y), jax.nn.log_softmax(h)
    return (p * (jax.nn.log_softmax(y) - logs)).sum(-1).mean()


def masked(h, y):
    kept = (y[:, 0] > 0).astype(jnp.float32)
    return (jnp.abs(h - y).mean(-1) * kept).sum() / kept.sum()


def entropy(h, y):
    return -(jax.nn.softmax(h) * jax.nn.log_softmax(h)).sum(-1).mean() + 0 * y.sum()


@pytest.mark.parametrize("loss", [squared, divergence, masked, entropy])
def test_a_loss_has_the_value_that_it_was_written_with(loss):
    w, x, y = jax.random.normal(jax.random.key(0), (3, 16, 16))
    run = amprewrite.unit_scale(lambda w, x, y: loss(x @ w, y), (w, x, y))
    np.testing.assert_allclose(run(w, x, y), loss(x @ w / 4, y), rtol=1e-4)
    cosines = check_gradient_validity(run, (w, x, y))
    assert all(not c < 0.9999 for c in cosines.values())


def test_a_weight_norm_keeps_the_mean_of_its_gains():
    gains = 8 + 0.1 * jax.random.normal(jax.random.key(0), (64, 1))
    (found,) = jax.tree.leaves(unit_init({"g": gains}))
    assert float(found.mean()) == pytest.approx(1, rel=1e-3)

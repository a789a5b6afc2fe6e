"""The way back from a converted model, copies of it, and trees beside the plain one."""

import copy
import pickle

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from tests.jax_programs import normal

X = normal(3, 4)
W = normal(4, 4, seed=1)


def matmul(x, w):
    return jnp.tanh(x @ w)


def equinox():
    eqx = pytest.importorskip("equinox")
    key = jax.random.key(0)
    model = eqx.nn.Sequential([eqx.nn.Linear(4, 4, key=key)] * 2)
    return model, lambda m: jax.vmap(m)(X), (X[0],)


def nnx():
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs))
    return model, lambda m: m(X), (X,)


def linen():
    linen = pytest.importorskip("flax.linen")
    named = jax.nn.initializers  # functions that are found by their names
    model = linen.Dense(4, kernel_init=named.ones, bias_init=named.zeros)
    variables = model.init(jax.random.key(0), X)
    return model, lambda m: m.apply(variables, X), (variables, X)


def function():
    return matmul, lambda f: f(X, W), (X, W)


KINDS = pytest.mark.parametrize("kind", [equinox, nnx, linen, function])


@KINDS
@pytest.mark.parametrize("early", [True, False], ids=["args", "lazy"])
def test_the_plain_model_comes_back(kind, early):
    model, run, args = kind()
    converted = amprewrite.convert(model, args=args if early else None)
    assert not (run(converted) == run(model)).all()
    plain = amprewrite.original(converted)
    assert type(plain) is type(model)
    assert (run(plain) == run(model)).all()
    assert amprewrite.original(plain) is plain


@KINDS
@pytest.mark.parametrize("module", ["pickle", "cloudpickle", "copy"])
def test_a_copy_gives_the_same(kind, module):
    model, run, args = kind()
    converted = amprewrite.convert(model, args=args)
    if module == "copy":
        copied = copy.deepcopy(converted)
    else:
        library = pytest.importorskip(module)
        copied = pickle.loads(library.dumps(converted))
    assert isinstance(copied, type(model)) or kind is function
    assert (run(copied) == run(converted)).all()
    assert copied.plan == converted.plan


@KINDS
def test_a_plan_that_was_given_goes_along(kind):
    model, run, args = kind()
    plan = amprewrite.inspect(model, "fp16", args=args)
    converted = amprewrite.convert(model, "fp16", args=args, plan=plan)
    copied = pickle.loads(pickle.dumps(converted))
    assert (run(copied) == run(converted)).all()
    assert copied.plan == plan


def test_a_tolerance_goes_along_as_its_plan():
    args = normal(64, 512), normal(512, 512, seed=1, scale=512**-0.5)
    converted = amprewrite.convert(matmul, args=args, tolerance=1e-2)
    copied = pickle.loads(pickle.dumps(converted))
    assert (copied(*args) == converted(*args)).all()
    assert copied.plan == converted.plan


@amprewrite.convert
def decorated(x):
    return x @ W


def test_a_function_that_is_converted_where_it_is_defined_is_pickled_by_name():
    found = pickle.loads(pickle.dumps(decorated))
    assert found is decorated


def test_gradients_of_both_kinds_meet_by_the_way_back():
    eqx = pytest.importorskip("equinox")
    model, run, _ = equinox()
    converted = amprewrite.convert(model)

    def loss(m):
        return (run(m) ** 2).mean()

    plain, low = eqx.filter_grad(loss)(model), eqx.filter_grad(loss)(converted)
    with pytest.raises(ValueError, match=r"Sequential' converted by amprewrite"):
        jax.tree.map(lambda a, b: a - b, plain, low)
    apart = jax.tree.map(lambda a, b: a - b, plain, amprewrite.original(low))
    assert jax.tree.structure(apart) == jax.tree.structure(plain)
    updated = eqx.apply_updates(converted, low)
    assert type(updated) is type(converted)
    same = eqx.apply_updates(amprewrite.original(converted), amprewrite.original(low))
    assert (run(amprewrite.original(updated)) == run(same)).all()


def test_what_jax_compiled_for_the_plain_model_is_not_run_for_the_converted():
    """Were their structures equal, the second call would find the first's program."""
    eqx = pytest.importorskip("equinox")
    model, run, _ = equinox()
    converted = amprewrite.convert(model)
    jitted = eqx.filter_jit(run)
    assert (jitted(model) != jitted(converted)).any()


def test_variables_of_nnx_are_those_of_the_original():
    flax_nnx = pytest.importorskip("flax.nnx")
    model, run, _ = nnx()
    converted = amprewrite.convert(model)
    assert amprewrite.original(converted) is model
    merged = flax_nnx.clone(converted)
    merged.layers[0].kernel[...] = 2 * merged.layers[0].kernel[...]
    plain = amprewrite.original(merged)
    assert type(plain) is type(model)
    assert plain.layers[0].kernel is merged.layers[0].kernel
    assert not (run(plain) == run(model)).all()

"""Python numbers among the arguments are constants of the program, as in Python."""

import math

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite
from amprewrite.errors import AmpWarning
from tests.jax_programs import normal, weight

X = normal(8, 16)
W = weight(16, 16)

PROGRAMS = {
    "product": lambda x, n: x * n,
    "power": lambda x, n: x**n,
    "arithmetic of Python": lambda x, n: (n * n / 7) * x,
    "remainder": lambda x, n: x * ((n * 2**20) % 97),
    "a class": lambda x, n: x * 2 if isinstance(n, int) else x * 3,
    "an exact class": lambda x, n: x if type(n) in (int, float) else -x,
    "an attribute": lambda x, n: x * 5 if hasattr(n, "dtype") else x * 2,
    "a key": lambda x, n: {f"at {n}": x},
    "a look-up": lambda x, n: {3: x * 2}.get(n, x),
    "a branch": lambda x, n: x * 2 if n == 3 else x,
    "a count": lambda x, n: x + sum(range(int(n))),
    "NumPy": lambda x, n: x * np.sqrt(n),
    "math": lambda x, n: x * math.sqrt(n),
    "a number": lambda x, n: (x, n * 2 + 1, n / 3),
    "low": lambda x, n: x.astype("bfloat16") * n,
    "integers": lambda x, n: x.astype("int8") + n,
}


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("policy", ["off", "bf16", "promote"])
@pytest.mark.parametrize("n", [3, 0.3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_means_what_it_does_in_python(name, n, policy):
    function = PROGRAMS[name]
    wanted, found = function(X, n), amprewrite.convert(function, policy)(X, n)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)
        assert getattr(one, "weak_type", None) == getattr(other, "weak_type", None)


def test_a_number_that_varies_is_a_warning_once_and_an_array_is_one_program():
    def function(w, x, rate):
        return jnp.tanh(x @ w) * rate

    converted = amprewrite.convert(function)
    for step in range(8):
        converted(W, X, 0.1 * step)
    with pytest.warns(AmpWarning, match=r"number rate had 9 values .*asarray\(rate\)"):
        converted(W, X, 0.8)
    for step in range(8, 12):
        converted(W, X, 0.1 * step)
    assert len(converted.plans) == 12
    once = amprewrite.convert(function)
    for step in range(12):
        once(W, X, jnp.asarray(0.1 * step))
    assert len(once.plans) == 1


def test_a_mode_among_few_is_no_warning():
    converted = amprewrite.convert(lambda w, x, n: jnp.tanh(x @ w) * n)
    for step in range(40):
        converted(W, X, step % 8)
    assert len(converted.plans) == 8

"""What low kernels round inside, against low kernels."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.runner import OPTIONS
from amprewrite.frameworks.jaxpr.probes.sensitivity import (
    STAGED,
    Rounding,
    with_rounded_numbers,
)
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Number
from tests.jax_programs import normal

pytestmark = pytest.mark.usefixtures("optimized_xla")

X = normal(64, 64)
KERNELS = {
    "integer_pow": [lambda x, y=y: lax.integer_pow(x, y) for y in (0, 1, 3, 4, 7, -3)],
    "logistic": [lax.logistic],
}


def step_of(function, x):
    (step,) = inline(jax.make_jaxpr(function)(x)).steps
    return step


def test_every_staged_primitive_is_tried():
    assert KERNELS.keys() == STAGED.keys()


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@pytest.mark.parametrize("primitive", STAGED)
def test_stages_are_rounded_as_the_low_kernel_rounds_them(primitive, low):
    rounding = Rounding(low)
    for function in KERNELS[primitive]:
        x = rounding.rounded(X)
        params = step_of(function, x).eqn.params
        made = rounding.rounded(STAGED[primitive](x, params, rounding.rounded))
        kernel = jax.jit(function, compiler_options=OPTIONS)
        wanted = kernel(x.astype(low)).astype(jnp.float32)
        np.testing.assert_allclose(made, wanted, rtol=1e-6)


def test_numbers_are_rounded_where_that_changes_them():
    step = step_of(lambda x: x * 0.3, X)
    found = with_rounded_numbers(step, "bfloat16", "float32")
    name, number = found.operands
    assert name == step.operands[0]
    assert isinstance(number, Number)
    assert number.dtype == "float32"
    assert float(number.value) == float(jnp.bfloat16(0.3)) != pytest.approx(0.3, 1e-6)
    for same in (lambda x: x * 0.5, lambda x: x * jnp.inf, lambda x: x * jnp.nan):
        step = step_of(same, X)
        assert with_rounded_numbers(step, "bfloat16", "float32") is step
    whole = step_of(lambda x: x * 1000001, jnp.arange(3))
    assert with_rounded_numbers(whole, "bfloat16", "float32") is whole

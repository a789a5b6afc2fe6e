"""Random JAX programs with unit scaling: the same program, and its true gradients."""

from unittest import mock

import pytest

jax = pytest.importorskip("jax")

import numpy as np

import amprewrite
from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import check_gradient_validity
from tests.fuzzing import seeds
from tests.jax_programs import floats
from tests.properties.jax_random import program

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_a_scaled_program_is_the_program_with_factors(seed: int) -> None:
    given = program(seed)
    try:
        scaled = amprewrite.unit_scale(given.function, given.args)
    except UnitScalingError as error:
        if "there is nothing to scale" in str(error):
            return
        error.add_note(given.text)
        raise
    (found,) = scaled.found.values()
    with mock.patch.multiple(found.writer, before={}, after={}):
        without = scaled(*given.args)
    pairs = zip(floats(without), floats(given.function(*given.args)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, 1e-4, 1e-4, err_msg=given.text)
    if given.reverse:
        cosines = check_gradient_validity(scaled, given.args)
        assert not [name for name, c in cosines.items() if c < 0.9999], given.text

"""Measured rules: close to the exact ones, the same every time, remembered."""

import numpy as np
import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import measure_rule, rule


def relu(inputs, draw):
    (x,) = inputs
    gradient = draw(x.shape)
    return np.maximum(x, 0), [gradient * (x > 0)]


def product(inputs, draw):
    x, w = inputs
    gradient = draw((x.shape[0], w.shape[1]))
    return x @ w, [gradient @ w.T, x.T @ gradient]


def test_a_measured_rule_is_close_to_the_exact_one():
    found = measure_rule(relu, {"input": (2**16,)}, name="relu")
    assert found.pair() == pytest.approx(rule("relu"), rel=5e-3)
    assert found.kind == "empirical"
    assert "seed 1472" in found.why


def test_the_root_mean_square_counts_the_mean():
    found = measure_rule(relu, {"input": (2**16,)}, centred=False)
    assert found.pair()[0] == pytest.approx(2**0.5, rel=5e-3)


def test_several_inputs_have_a_factor_each():
    found = measure_rule(product, {"left": (256, 64), "right": (64, 128)})
    exact = rule("matmul", rows=256, inner=64, columns=128)
    assert found.pair()[0] == pytest.approx(exact[0], rel=1e-2)
    assert found.pair()[1] == pytest.approx(exact[1], rel=1e-2)


def test_a_rule_is_measured_once():
    runs = []

    def counted(inputs, draw):
        runs.append(inputs)
        return relu(inputs, draw)

    first, second = (measure_rule(counted, {"input": (2**20,)}) for _ in range(2))
    assert first is second
    assert len(runs) == 1


def test_no_gradient_is_refused():
    def step(inputs, _draw):
        return np.sign(inputs[0]), [np.zeros_like(inputs[0])]

    message = "step: the gradient of input has mean square 0"
    with pytest.raises(UnitScalingError, match=message):
        measure_rule(step, {"input": (2**20,)}, name="step")


def test_an_input_without_a_gradient_is_left_as_it_is_beside_others():
    def one_of_two(inputs, draw):
        return inputs[0], [draw(inputs[0].shape), np.zeros_like(inputs[1])]

    rule = measure_rule(one_of_two, {"used": (2**20,), "unused": (4,)})
    assert rule.factors.backward["used"] == pytest.approx(1, rel=0.01)
    assert rule.factors.backward["unused"] == 1


def test_an_output_that_is_not_finite_is_refused():
    def broken(inputs, _draw):
        return np.full_like(inputs[0], np.nan), [inputs[0]]

    with pytest.raises(
        UnitScalingError, match="broken: the output has mean square nan"
    ):
        measure_rule(broken, {"input": (2**20,)}, name="broken")


@pytest.mark.parametrize(("power", "factor"), [(-1, 1.0), (5, 945**-0.5)])
def test_what_has_no_scale_is_left_as_it_is(power, factor):
    def function(inputs, draw):
        (x,) = inputs
        return x**power, [draw(x.shape) * power * x ** (power - 1)]

    rule = measure_rule(function, {"input": (2**20,)})
    assert rule.factors.forward == pytest.approx(factor, rel=0.1)
    assert ("left as it is" in rule.why) == (power < 0)
    assert power > 0 or rule.factors.backward["input"] == 1.0

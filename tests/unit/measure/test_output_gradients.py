"""Gradients of outputs: 1 for losses, else the same Gaussian numbers each time."""

import numpy as np

from amprewrite.measure.runs import output_gradients


def test_losses_get_one_and_other_outputs_zero():
    one, two = output_gradients([(), (2, 3)])
    assert one == 1
    assert not two.any()


def test_without_a_loss_they_are_gaussian_numbers():
    first, second = output_gradients([(100, 50), (100, 50)])
    assert np.abs(first.std() - 1) < 0.05
    assert not np.array_equal(first, second)
    assert np.array_equal(first, output_gradients([(100, 50)])[0])

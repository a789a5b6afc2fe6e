import pytest

torch = pytest.importorskip("torch")

import numpy as np

from amprewrite.frameworks.torch_fx.probes.lockstep import Again

X = torch.linspace(1, 2, 8, dtype=torch.float64)


def call(function):
    """The op as a walk calls it."""
    return lambda operands: function(*operands[0], **operands[1])


def only(found):
    """The result of an op that has one."""
    assert found is not None
    (array,) = found
    return np.asarray(array)


def test_operands_are_moved_up_or_down():
    again = Again(call(torch.mul), ([X, 2], {}))
    still, moved = only(again.results()), only(again(1e-2, 0))
    assert still.tolist() == (2 * X).tolist()
    np.testing.assert_allclose(abs(moved / still - 1), 1e-2)
    assert {*np.sign(moved - still)} == {-1.0, 1.0}
    assert again.largest == 8


def test_what_is_written_to_is_a_copy():
    again = Again(call(torch.Tensor.mul_), ([X, 2], {}), writes=True)
    first, second = only(again.results()), only(again.results())
    assert first.tolist() == second.tolist()
    assert X[0] == 1


def test_random_ops_draw_anew_and_the_state_stays():
    again = Again(call(torch.rand_like), ([X], {}))
    before = torch.get_rng_state()
    one, two = only(again(0.0, 0)), only(again(0.0, 1))
    assert not np.array_equal(one, two)
    assert torch.equal(before, torch.get_rng_state())


def test_an_op_without_a_kernel_for_the_dtypes_gives_nothing():
    assert Again(call(torch.bitwise_not), ([X], {})).results() is None

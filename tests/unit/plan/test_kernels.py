"""What low contractions hand over where nobody says."""

from amprewrite.plan.hardware import OPERAND, Kernels


def test_they_round_themselves_and_give_gradients_as_they_are_wanted():
    assert Kernels() == Kernels(accumulators=False, derivative_accumulator=OPERAND)

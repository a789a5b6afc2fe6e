import numpy as np

from amprewrite.measure.runs import OpSample


def test_a_kernel_is_compared_on_the_operands_that_it_had():
    actual, alone, same, checked = ((np.full(1, n),) for n in range(4))
    sample = OpSample("a", actual, actual, alone, exact=False, same=same)
    assert sample.kernel == (alone, same)
    beside = OpSample("a", actual, actual, alone, False, same, checked=checked)
    assert beside.kernel == (actual, checked)

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from amprewrite.measure.runs import OpSample
from amprewrite.plan import Decision
from amprewrite.verify import own_errors

LOW = ("bfloat16",)
DECISION = Decision(
    "op", "op", "aten.op", "promote", "bfloat16", "", "", operands=LOW, results=LOW
)
X = np.random.default_rng(0).standard_normal(4096)


def low(values):
    """The values as bfloat16 holds them."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def sample(run, found, **options):
    """What an op that is ``run`` gives for X, where ``found`` was found."""
    held = low(X)

    def again(unit, draw):
        signs = np.random.default_rng(draw).integers(0, 2, held.shape) * 2 - 1
        return (run(held * (1 + unit * signs)),)

    alone = (np.asarray(found(held)),)
    same = (np.asarray(run(held)),)
    return OpSample("op", same, alone, alone, False, same, again, **options)


def kernel_error(given, decision):
    rows = own_errors.compared(given, [0.0] * len(given.alone))
    return own_errors.kernel_error(given, decision, rows)


def is_fault(given, decision=DECISION):
    found = kernel_error(given, decision)
    assert found is not None
    return found[0] > found[1]


def test_one_rounding_is_explained_and_a_tenth_is_not():
    assert not is_fault(sample(np.tanh, lambda x: low(np.tanh(x))))
    assert is_fault(sample(np.tanh, lambda x: low(1.1 * np.tanh(x))))
    assert is_fault(sample(np.tanh, lambda x: low(np.maximum(x, 0))))


def test_digits_that_an_op_loses_inside_are_explained():
    def run(x):
        return np.asarray([x[::2].sum() - x[::2].sum() * 0.99 - x[1::2].sum() * 0.01])

    def inside(x):
        even, odd = low(x[::2].sum()), low(x[1::2].sum() * 0.01)
        return np.asarray([even - low(even * 0.99) - odd])

    given = sample(run, inside, length=4096.0)
    found = kernel_error(given, DECISION)
    assert found is not None
    assert found[0] > 0.1
    assert not is_fault(given)
    assert is_fault(sample(lambda x: x[:8], lambda x: x[:8] * 1.1))


def test_sums_in_float32_may_be_in_another_order():
    dtypes = {"operands": ("float32",), "results": ("float32",)}
    full = replace(DECISION, precision="float32", **dtypes)
    assert not is_fault(sample(np.tanh, lambda x: np.tanh(x) * (1 + 5e-4)), full)
    assert is_fault(sample(np.tanh, lambda x: np.tanh(x) * (1 + 5e-3)), full)
    tf32 = sample(np.tanh, lambda x: np.tanh(x) * (1 + 5e-3), contracts=True)
    assert not is_fault(tf32, full)


def test_what_vanishes_or_overflows_is_no_fault():
    dtypes = {"operands": ("float16",), "results": ("float16",)}
    half = replace(DECISION, precision="float16", **dtypes)

    def small(x):
        return x * 1e-8

    def flushed(x):
        return (x * 1e-8).astype(np.float16).astype(np.float64)

    assert not is_fault(sample(small, flushed), half)
    assert not is_fault(sample(lambda x: x * 1e6, lambda x: x * np.inf), half)


def test_an_op_that_jumps_or_is_random_is_not_judged():
    draws = np.random.default_rng(1)

    def drawn(x):
        return draws.standard_normal(x.shape)

    assert not is_fault(sample(drawn, drawn))

    def jumps(x):
        return np.floor(x * 1e3)

    assert not is_fault(sample(jumps, lambda x: jumps(x * (1 + 1e-3))))


@pytest.mark.parametrize("change", [{"same": None}, {"again": None}])
def test_what_cannot_be_run_again_is_not_judged(change):
    given = replace(sample(np.tanh, lambda x: 2 * np.tanh(x)), **change)
    found = kernel_error(given, DECISION)
    assert found is None or found[0] <= found[1]

"""JAX's own samples of its primitives: what runs, runs converted with the same dtypes.

A sample is run as it is, and gives the same values then, but for contractions. It is
run with its operands made by a contraction, too, so that what the policy runs low is
run low; its values may be far off then, where they depend on the last digits.
"""

from collections import defaultdict

import numpy as np
import pytest

jax = pytest.importorskip("jax")
harnesses = pytest.importorskip("jax._src.internal_test_util.test_harnesses")

import jax.numpy as jnp

import amprewrite
from tests.jax_programs import (
    FORWARD,
    LOW,
    checked_jaxpr,
    dtypes,
    relative_error,
    wrongly_low,
)

pytestmark = pytest.mark.slow

SAMPLES = 6
"""Samples of float32 for each primitive, and others; there are 5594 in all."""

SLOW = "XLA compiles each sample for ten seconds: its program is traced, not run"
TRACED = {
    **dict.fromkeys(("igamma", "igammac", "random_gamma"), SLOW),
    "regularized_incomplete_beta": SLOW,
}
"""Primitives that are not run, and why."""


def sampled():
    """Return some samples for each group: the first, the last, and between."""
    groups = defaultdict(list)
    for harness in harnesses.all_harnesses:
        full = harness.dtype == np.float32
        groups[harness.group_name, full].append(harness)
    chosen = defaultdict(list)
    for (group, full), found in groups.items():
        count = SAMPLES if full else 1
        places = np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)
        chosen[group] += [found[i] for i in places]
    return chosen


GROUPS = sampled()


def fed(x):
    """Return float32 numbers as a contraction that runs low makes them."""
    if getattr(x, "dtype", None) != jnp.float32 or x.size == 0:
        return x
    pairs = jnp.stack([x.ravel(), jnp.zeros(x.size)], 1)
    return (pairs @ jnp.array([1.0, 0.0])).reshape(x.shape)


def through_low(function):
    return lambda *args: function(*map(fed, args))


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("group", sorted(GROUPS))
def test_samples_run_converted_and_keep_their_dtypes(group):
    ran = 0
    for harness in GROUPS[group]:
        skipped = any(
            limit.filter(device="cpu", dtype=harness.dtype)
            for limit in harness.jax_unimplemented
        )
        if skipped:
            continue
        args = harness.dyn_args_maker(np.random.RandomState(0))  # as it asks
        for function in (harness.dyn_fun, through_low(harness.dyn_fun)):
            closed, found = _runs_converted(function, args, run=group not in TRACED)
            assert harness.dtype != np.float32 or not wrongly_low(closed)
            if function == harness.dyn_fun and found is not None:
                _agree(found, jax.jit(function)(*args))
        ran += 1
    assert ran


def _runs_converted(function, args, *, run):
    expected = jax.eval_shape(function, *args)
    converted = jax.jit(amprewrite.convert(function))
    found = converted(*args) if run else jax.eval_shape(converted, *args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert dtypes(found) == dtypes(expected)
    shapes = [[np.shape(x) for x in jax.tree.leaves(t)] for t in (found, expected)]
    assert shapes[0] == shapes[1]
    return checked_jaxpr(converted, *args), found if run else None


def _agree(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for ours, theirs in ((_plain(one), _plain(other)) for one, other in pairs):
        if not np.issubdtype(theirs.dtype, np.inexact):
            np.testing.assert_array_equal(ours, theirs)
            continue
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(ours[~finite], theirs[~finite])
        assert relative_error(ours[finite], theirs[finite]) <= FORWARD


def _plain(x):
    """Return the numbers of an array; those of random keys, too."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return np.asarray(jax.random.key_data(x))
    low = x.dtype.name in LOW or x.dtype.name.startswith("float8")
    return np.asarray(x).astype(np.float32) if low else np.asarray(x)


def test_what_is_only_traced_exists():
    assert GROUPS.keys() >= TRACED.keys()

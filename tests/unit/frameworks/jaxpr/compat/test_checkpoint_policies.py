"""Answers of policies of jax.checkpoint, as JAX's own policies give them."""

import pytest

jax = pytest.importorskip("jax")

from jax.extend.core import primitives

from amprewrite.frameworks.jaxpr.compat.primitives import is_saved, offloaded

POLICIES = jax.checkpoint_policies
DOT = primitives.dot_general_p


def test_answers_say_what_is_saved():
    assert is_saved(POLICIES.everything_saveable(DOT))
    assert is_saved(True)
    assert not is_saved(POLICIES.nothing_saveable(DOT))
    with pytest.raises(TypeError):
        is_saved("maybe")


def test_what_is_offloaded_has_two_memories():
    policy = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")
    answer = policy(DOT, dimension_numbers=(((1,), (0,)), ((), ())))
    found = offloaded(answer)
    assert found is not None
    home, away = found
    assert home != away
    assert offloaded(True) is None

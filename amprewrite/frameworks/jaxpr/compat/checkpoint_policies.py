"""Answers of the policies of ``jax.checkpoint``."""

from typing import Any

from jax._src import core as memories
from jax._src.interpreters import partial_eval as policies


def is_saved(answer: Any) -> bool:
    """Return whether a policy of ``jax.checkpoint`` answered that a result is saved.

    Raises:
        TypeError: It is no answer; JAX's message lists the valid ones.
    """
    return isinstance(policies.ensure_enum(answer), policies.SaveableType)


def offloaded(answer: Any) -> tuple[Any, Any] | None:
    """Return the home and the offload memory of a result, if a policy moves it.

    Both are memories as ``jax.device_put`` takes them; None if it is not moved.
    """
    found = policies.ensure_enum(answer)
    if not isinstance(found, policies.Offloadable):
        return None
    home, away = map(memories.mem_kind_to_space, (found.src, found.dst))
    return home, away

"""Modules are found in what a function is given and in what it closes over."""

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

from amprewrite.frameworks.jaxpr.capture.state_pairs import Position
from amprewrite.frameworks.jaxpr.modules.functions import (
    calling,
    naming,
    states,
)
from amprewrite.frameworks.jaxpr.program.scopes import _active

LAYER = eqx.nn.Linear(2, 2, key=jax.random.key(0))
MODEL = eqx.nn.Sequential([LAYER, eqx.nn.Lambda(jax.nn.relu)])


def known(function, *args, **kwargs):
    with calling(function, args, kwargs):
        names = _active.get()
        return [path for path, _ in names.known] if names else []


def test_modules_are_found_wherever_a_function_has_them() -> None:
    def given(model, x):
        return model(x)

    def closing():
        held = LAYER
        return lambda x: held(x + 1)

    assert known(given, LAYER, 1) == ["model"]
    assert known(given, x=1, model=LAYER) == ["model"]
    assert known(lambda *args: args, 1, LAYER) == ["args.1"]
    assert known(closing(), 1) == ["held"]
    assert known(lambda x: LAYER(x), 1) == ["LAYER"]  # noqa: PLW0108  # a global
    assert known(jax.vmap(MODEL), 1) == ["", "layers.0", "layers.1"]
    assert known(abs, 1) == []


def test_a_function_that_names_is_the_function() -> None:
    assert naming(abs)(-1) == 1
    assert naming(abs).__name__ == "abs"


def test_states_are_what_containers_of_a_library_hold() -> None:
    _, state = eqx.nn.make_with_state(eqx.nn.StateIndex)(jax.numpy.ones(2))
    held = jax.tree.map(lambda _: Position(0), state)
    given = jax.tree.map(lambda _: Position(3), state)
    found = list(states((Position(1), given), {}, (held, Position(1))))
    assert found == [(0, 3)]

"""Modules are found in what a function is given and in what it closes over."""

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

from amprewrite.frameworks.jaxpr.capture.trace import Position
from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.function.adapters import naming, states

LAYER = eqx.nn.Linear(2, 2, key=jax.random.key(0))
MODEL = eqx.nn.Sequential([LAYER, eqx.nn.Lambda(jax.nn.relu)])


X = jax.numpy.ones(2)


def known(function, *args, **kwargs):
    """Return the paths of the modules that a call runs, as a trace has them."""
    traced = jax.make_jaxpr(lambda: naming(function)(*args, **kwargs))()
    stacks = (eqn.source_info.name_stack for eqn in traced.jaxpr.eqns)
    names = map(equations.scopes, stacks)
    paths = (n[1:] for scopes in names for n in scopes if n.startswith("/"))
    return list(dict.fromkeys(paths))


def test_modules_are_found_wherever_a_function_has_them() -> None:
    def given(model, x):
        return model(x)

    def closing():
        held = LAYER
        return lambda x: held(x + 1)

    assert known(given, LAYER, X) == ["model"]
    assert known(given, x=X, model=LAYER) == ["model"]
    assert known(lambda *args: args[1](args[0]), X, LAYER) == ["args.1"]
    assert known(closing(), X) == ["held"]
    assert known(lambda x: LAYER(x), X) == ["LAYER"]  # noqa: PLW0108  # a global
    assert known(jax.vmap(MODEL), X[None]) == ["layers.0", "layers.1"]
    assert known(abs, X) == []


def test_a_function_that_names_is_the_function() -> None:
    assert naming(abs)(-1) == 1
    assert naming(abs).__name__ == "abs"


def test_states_are_what_containers_of_a_library_hold() -> None:
    _, state = eqx.nn.make_with_state(eqx.nn.StateIndex)(jax.numpy.ones(2))
    held = jax.tree.map(lambda _: Position(0), state)
    given = jax.tree.map(lambda _: Position(3), state)
    found = list(states((Position(1), given), {}, (held, Position(1))))
    assert found == [(0, 3)]

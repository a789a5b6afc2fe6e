"""Modules are told by their libraries, if these are loaded."""

import sys

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

from amprewrite.frameworks.jaxpr.function.adapters import (
    adapter_of,
    children,
    modules_in,
    state_kinds,
    wrappers,
)

LAYER = eqx.nn.Linear(2, 2, key=jax.random.key(0))
MODEL = eqx.nn.Sequential([LAYER, eqx.nn.Lambda(jax.nn.relu)])


def test_modules_in_a_tree_have_paths() -> None:
    found = dict(modules_in({"a": [MODEL], "b": 1}))
    assert list(found) == ["a.0", "a.0.layers.0", "a.0.layers.1"]
    assert found["a.0.layers.0"] is MODEL.layers[0]


def test_only_modules_have_adapters() -> None:
    assert adapter_of(LAYER).__name__.endswith("modules.equinox")
    assert adapter_of(abs) is None
    assert type(eqx.filter_jit(abs)) in set(wrappers())


def test_a_library_that_is_not_loaded_has_no_modules(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "equinox", None)
    assert adapter_of(LAYER) is None
    assert not list(children(LAYER))
    assert not list(modules_in([LAYER]))
    assert type(eqx.filter_jit(abs)) not in set(wrappers())


def test_containers_of_state_are_those_of_loaded_libraries(monkeypatch) -> None:
    assert eqx.nn.State in set(state_kinds())
    monkeypatch.setitem(sys.modules, "equinox", None)
    assert eqx.nn.State not in set(state_kinds())

"""Scopes name the modules of a program, and leave no trace on classes."""

import threading

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.compat.equations import scopes
from amprewrite.frameworks.jaxpr.program.scopes import (
    module_path,
    named,
    scope,
)
from amprewrite.marks import FULL


class Layer:
    def __call__(self, x):
        return jnp.sin(x)


class Outer:
    def __init__(self):
        self.first, self.second = Layer(), Layer()

    def __call__(self, x):
        return self.second(jnp.cos(self.first(x)))


def children(module):
    yield "", module
    for name in ("first", "second"):
        if hasattr(module, name):
            yield name, getattr(module, name)


def paths(function):
    """The path of each equation, by primitive."""
    jaxpr = jax.make_jaxpr(function)(1.0).jaxpr
    return [
        (e.primitive.name, module_path(scopes(e.source_info.name_stack)))
        for e in jaxpr.eqns
    ]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ((), ""),
        (("encoder", "layer"), "encoder.layer"),
        (("encoder/layer",), "encoder.layer"),
        (("transpose(jvp(layer))",), "layer"),
        (("Net", "/blocks.0", "/blocks.0.attn"), "blocks.0.attn"),
        (("Net", "/", "blocks_0"), "blocks_0"),
        (("/blocks.0", "eqx.nn.Linear"), "blocks.0"),
        (("eqx.nn.Linear",), "eqx.nn.Linear"),
        (("attn", "...qhd,...khd->...hqk"), "attn"),
        (("attn", FULL), "attn"),
    ],
)
def test_a_path_is_made_of_scopes(given, path) -> None:
    assert module_path(given) == path


def test_modules_are_named_where_they_are_called() -> None:
    model = Outer()

    def run(x):
        with named(children(model), children):
            return model(x)

    assert paths(run) == [("sin", "first"), ("cos", ""), ("sin", "second")]


def test_classes_are_patched_only_inside_also_when_nested() -> None:
    original = vars(Layer)["__call__"]
    model = Outer()
    with named(children(model), children):
        with named(children(model), children):
            assert vars(Layer)["__call__"] is not original
        assert vars(Layer)["__call__"] is not original
        assert vars(vars(Layer)["__call__"])["__wrapped__"] is original
    assert vars(Layer)["__call__"] is original


def test_classes_are_restored_after_an_error() -> None:
    original = vars(Layer)["__call__"]
    with pytest.raises(ValueError, match="wrong"), named([("a", Layer())], children):
        raise ValueError("wrong")
    assert vars(Layer)["__call__"] is original


def test_other_threads_run_as_before() -> None:
    model, found = Outer(), []
    with named(children(model), children):
        thread = threading.Thread(target=lambda: found.append(paths(model)))
        thread.start()
        thread.join()
    assert found == [[("sin", ""), ("cos", ""), ("sin", "")]]


def test_what_is_like_several_modules_has_the_path_above_them() -> None:
    model = Outer()
    known = [("blocks.0", Layer()), ("blocks.1", Layer())]

    def run(x):
        with named(known, children):
            return Layer()(x)

    assert paths(run) == [("sin", "blocks.Layer")]
    assert paths(model)[0] == ("sin", "")


def test_what_is_rebuilt_is_known_by_its_kind() -> None:
    stack = Outer()
    known = [("stack", stack), *((f"stack.{p}", m) for p, m in children(stack) if p)]

    def run(x):
        with named(known, children):
            return Outer()(x)

    assert paths(run) == [
        ("sin", "stack.first"),
        ("cos", "stack"),
        ("sin", "stack.second"),
    ]


def test_jitted_parts_are_traced_for_each_module_that_holds_others() -> None:
    traces = []

    @jax.jit
    def part(x):
        traces.append(x)
        return x

    def run(x):
        for path in ("a", "b"):
            for holds in (True, False):
                with scope(path, holds_modules=holds):
                    part(x)
        return x

    jax.make_jaxpr(run)(1.0)
    assert len(traces) == 3  # a, b, and one for all that hold none

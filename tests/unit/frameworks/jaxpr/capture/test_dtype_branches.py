"""Functions that decide by a dtype are known by their bytecode."""

import functools

import pytest

from amprewrite.frameworks.jaxpr.capture.dtype_branches import branches, decides


def compared(x, y):
    return x * 2 if x.dtype == y else x


def by_variable(x):
    wanted = x.dtype
    wide = wanted.itemsize
    if wide < 4:
        x = x * 2
    return x


def by_table(x, table):
    return table[x.dtype]


def predicate(x):
    return x.dtype == "bfloat16"


def asked(jnp, x):
    return x + 1 if jnp.issubdtype(x.dtype, jnp.floating) else x


def calling(x):
    return x * 2 if predicate(x) else x


@pytest.mark.parametrize(
    "function", [compared, by_variable, by_table, predicate, asked]
)
def test_a_function_that_decides_by_a_dtype_is_known(function):
    assert decides(function.__code__)


def made(jnp, x):
    start = jnp.zeros(3, x.dtype)
    return start.astype(x.dtype) + x


def refusing(x):
    if x.dtype != "float32":
        msg = "only float32"
        raise TypeError(msg)
    return x


SCOPE = {}
exec("def asserting(x):\n    assert x.dtype == 1\n    return x", SCOPE)  # as it is


def default(x, dtype=None):
    if dtype is None:
        dtype = x.dtype
    return x.astype(dtype)


@pytest.mark.parametrize("function", [made, refusing, SCOPE["asserting"], default])
def test_one_that_uses_a_dtype_or_refuses_one_does_not_decide(function):
    assert not decides(function.__code__)
    assert not branches([], function)


class Model:
    def __call__(self, x):
        return self.turn(x)

    def turn(self, x):
        return predicate(x)


def test_what_a_function_names_holds_or_contains_counts():
    assert not decides(calling.__code__)
    assert branches([], calling)
    assert branches([calling.__code__], len)
    assert branches([], functools.partial(made, calling))
    assert branches([], lambda x: [compared][0](x, 1))
    assert branches([], Model())
    assert branches([], Model().turn)

    def around(x):
        def inner(y):
            return y if y.dtype == "bfloat16" else x

        return inner

    assert branches([], around)

    def unassigned(x):
        return later(x)  # pyright: ignore[reportCallIssue]

    assert not branches([], unassigned)
    later = made
    assert not branches([], unassigned)

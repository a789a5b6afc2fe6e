"""The processor's rules against JAX, NumPy and the array API; torch's are by op."""

import warnings
from itertools import product

import pytest

from amprewrite.dtypes import format_of
from amprewrite.dtypes.processor import Behaviour, Processor, Rule
from amprewrite.dtypes.systems.array_api import ArrayApiRules
from amprewrite.dtypes.systems.jax import JaxRules
from amprewrite.dtypes.systems.numpy import NumpyRules
from amprewrite.errors import AmpError

RULES = {
    "exp": Rule(Behaviour.INT_TO_FLOAT),
    "mean": Rule(Behaviour.INT_TO_FLOAT, floats=True, reduction=True),
    "sum": Rule(Behaviour.MINIMUM, dtype="int64"),
    "abs": Rule(Behaviour.PRESERVE, real=True),
    "argmax": Rule(Behaviour.FIXED, dtype="int64"),
}
TWO = {
    "add": Rule(Behaviour.PROMOTE),
    "equal": Rule(Behaviour.BOOL),
    "divide": Rule(Behaviour.INT_TO_FLOAT),
}


def ours(processor, rule, *operands, **options):
    try:
        return processor.apply(rule, *operands, **options).dtype
    except AmpError:
        return None


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", [*RULES, *TWO])
def test_jax(name, x64):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    rule, count = {**RULES, **TWO}[name], 2 if name in TWO else 1
    names = [
        x
        for x in sorted(JaxRules.dtypes)
        if format_of(x).bits >= 8 and (x64 or jax.dtypes.canonicalize_dtype(x) == x)
    ]
    wrong = []
    with jax.enable_x64(x64):
        for dtypes in product(names, repeat=count):
            given = [jax.ShapeDtypeStruct((2,), x) for x in dtypes]
            try:
                made = jax.eval_shape(getattr(jnp, name), *given)
                want = made.dtype.name, made.weak_type and name != "equal"
            except (TypeError, ValueError):
                want = None
            try:
                found = Processor("jax", x64=x64).apply(rule, *dtypes)
                got = found.dtype, found.weak
            except AmpError:
                got = None
            if got != want:
                wrong.append((dtypes, got, want))
    assert not wrong, wrong[:10]


@pytest.mark.parametrize("number", [1, 1.0, 1j])
@pytest.mark.parametrize("x64", [False, True])
def test_jax_weakness(number, x64):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(x64):
        for name in ("exp", "mean", "sum"):
            made = jax.eval_shape(getattr(jax.numpy, name), number)
            found = Processor("jax", x64=x64).apply(RULES[name], number)
            assert (found.dtype, found.weak) == (made.dtype.name, made.weak_type), name


@pytest.mark.parametrize("name", ["exp", "sum", "abs", "argmax"])
def test_numpy(name):
    np = pytest.importorskip("numpy", minversion="2.0")
    for dtype in sorted(NumpyRules.dtypes):
        want = getattr(np, name)(np.ones(2, dtype)).dtype.name
        assert ours(Processor("numpy"), RULES[name], dtype) == want, dtype


def test_numpy_in_place():
    np = pytest.importorskip("numpy", minversion="2.0")
    processor, add = Processor("numpy"), TWO["add"]
    for a, b in product(sorted(NumpyRules.dtypes), repeat=2):
        x = np.ones(2, a)
        try:
            x += np.ones(2, b)
            want = a
        except TypeError:
            want = None
        assert ours(processor, add, a, b, in_place=True) == want, (a, b)


def test_torch_in_place():
    torch = pytest.importorskip("torch")
    names = ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64")
    processor, add = Processor("torch"), TWO["add"]
    for a, b in product(names, repeat=2):
        x, y = (torch.ones(2, dtype=getattr(torch, name)) for name in (a, b))
        try:
            want = str(x.add_(y).dtype).removeprefix("torch.")
        except RuntimeError:
            want = None
        assert ours(processor, add, a, b, in_place=True) == want, (a, b)


def test_array_api():
    xp = pytest.importorskip("array_api_strict")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = {x: xp.ones(2, dtype=getattr(xp, x)) for x in ArrayApiRules.dtypes}
    processor = Processor("array-api")
    for (dtype, x), name in product(arrays.items(), ("exp", "mean", "sum")):
        try:
            want = str(getattr(xp, name)(x).dtype).rpartition(".")[2]
        except TypeError:
            want = None
        assert ours(processor, RULES[name], dtype) == want, (dtype, name)

"""JAX's promotion, dtype and weakness, against JAX itself."""

from itertools import chain, combinations_with_replacement, product

import pytest

from amprewrite.dtypes import Operand, format_of, promote_types, result_type
from amprewrite.dtypes.systems.jax import JaxRules
from amprewrite.errors import PromotionError

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

WIDE = {"int64", "uint64", "float64", "complex128"}
NAMES = sorted(JaxRules.dtypes)
NUMBERS = [True, 1, 1.0, 1j]
MODES = [
    ("jax", "standard", False),
    ("jax", "standard", True),
    ("jax-strict", "strict", False),
    ("jax-strict", "strict", True),
]
modes = pytest.mark.parametrize(("system", "promotion", "x64"), MODES)


def ours(*operands, **options):
    try:
        return tuple(result_type(*operands, **options))
    except PromotionError:
        return None


def theirs(*values):
    try:
        dtype, weak = jax.dtypes.result_type(*values, return_weak_type_flag=True)
    except (ValueError, TypeError):
        return None
    return dtype.name, weak


def can_be_weak(name):
    """Bool never is; JAX fails on a weak integer below 8 bits (kind 'V')."""
    return name != "bool" and (
        format_of(name).kind in ("float", "complex") or format_of(name).bits >= 8
    )


def arrays(*, x64):
    """Operands that an array can be: 64 bits only where they are enabled."""
    names = [name for name in NAMES if x64 or name not in WIDE]
    strong = [Operand(name) for name in names]
    return strong + [Operand(name, weak=True) for name in names if can_be_weak(name)]


def in_trace(check, operands):
    """Call ``check`` with tracers of the operands: those can have any weak type."""
    structs = [jax.ShapeDtypeStruct((2,), x.dtype, weak_type=x.weak) for x in operands]
    jax.eval_shape(lambda *tracers: check(tracers), *structs)


@modes
def test_result_type_of_one_to_three(system, promotion, x64):
    operands = [*arrays(x64=x64), *NUMBERS]
    wrong, cases = [], 0

    def check(tracers):
        nonlocal cases
        pairs = list(zip(operands, [*tracers, *NUMBERS], strict=True))
        some = (combinations_with_replacement(pairs, n) for n in (1, 2, 3))
        for chosen in chain.from_iterable(some):
            mine, live = zip(*chosen, strict=True)
            got, want = ours(*mine, system=system, x64=x64), theirs(*live)
            cases += 1
            if got != want:
                wrong.append((mine, got, want))

    with jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion):
        in_trace(check, operands[: -len(NUMBERS)])
    assert not wrong, wrong[:10]
    assert cases > 15_000


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
@modes
def test_result_type_of_names(system, promotion, x64):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion):
        wrong = [
            (a, b)
            for a, b in product(NAMES, repeat=2)
            if ours(a, b, system=system, x64=x64) != theirs(jnp.dtype(a), jnp.dtype(b))
        ]
    assert not wrong


@modes
def test_promote_types(system, promotion, x64):
    wrong = []
    with jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion):
        for a, b in product(NAMES, repeat=2):
            try:
                want = jnp.promote_types(a, b).name
            except ValueError:
                want = None
            try:
                got = promote_types(a, b, system, x64=x64)
            except PromotionError:
                got = None
            if got != want:
                wrong.append((a, b, got, want))
    assert not wrong, wrong


@pytest.mark.parametrize("x64", [False, True])
def test_addition_gives_what_is_promised(x64):
    names = [x.dtype for x in arrays(x64=x64) if format_of(x.dtype).bits >= 16]
    numbers = [result_type(number, x64=x64) for number in (1, 1.0, 1j)]
    computable = [Operand(name) for name in dict.fromkeys(names)]
    # Weak arrays of other sizes exist, and add keeps their sizes; result_type does not.
    computable += [Operand(dtype, weak=True) for dtype, _ in numbers]
    wrong = []

    def check(tracers):
        pairs = zip(computable, tracers, strict=True)
        for (a, x), (b, y) in product(pairs, repeat=2):
            total = jnp.add(x, y).aval
            if ours(a, b, x64=x64) != (total.dtype.name, total.weak_type):
                wrong.append((a, b, total))

    with jax.enable_x64(x64):
        in_trace(check, computable)
    assert not wrong, wrong[:10]

"""The dtype rule of each op against eager torch on the CPU."""

import warnings
from dataclasses import replace
from itertools import product

import pytest

from amprewrite.dtypes import Operand
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.dtypes.processor import Behaviour, Processor
from amprewrite.errors import PromotionError

torch = pytest.importorskip("torch")

from tests.oracles.op_calls import BINARY, call_of, count_of

FLOATS = ("float32", "bfloat16", "float16", "float64")
ZERO_D = {"fill", "index_fill", "masked_fill"}
"""Ops whose last operand the calls make 0-d."""

PROCESSOR = Processor("torch", truncate_complex=True)

REFUSED, NO_KERNEL = "refused", "no kernel"


def live(call, dtypes):
    """The dtype that the call gives, or why it gives none."""
    torch.manual_seed(0)
    tensors = [torch.ones(4, 4, dtype=getattr(torch, name)) for name in dtypes]
    try:
        result = call(*tensors)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        text = str(error)
        lacks = isinstance(error, NotImplementedError) or "not implemented" in text
        return NO_KERNEL if lacks else REFUSED
    first = result[0] if isinstance(result, tuple | list) else result
    if isinstance(first, bool):
        return "bool"
    return str(first.dtype).removeprefix("torch.")


def works(found):
    return found not in (REFUSED, NO_KERNEL)


def predicted(rule, dtypes, *, zero_d=False):
    """What the processor says of a call: of its result, and of each tensor."""
    count = len(dtypes)
    if rule.behaviour is not Behaviour.PRESERVE:  # that takes all, and looks at one
        roles = (rule.roles_of(n) for n in range(1, 9))
        count = len(next(x for x in roles if len(x) - x.count("-") == len(dtypes)))
    roles = rule.roles_of(count)
    skips = [count > len(dtypes) and role == "-" for role in roles]
    left = iter(dtypes)
    given = [Operand("int64" if skip else next(left)) for skip in skips]
    if zero_d:
        given[-1] = replace(given[-1], ndim=0)
    promoted = PROCESSOR.apply(rule, *given)
    casts = zip(promoted.casts, skips, strict=True)
    return promoted, [to for to, skip in casts if not skip]


def mistakes(rule, dtypes, found, kernels, *, zero_d):
    """What is wrong with the rule for operands of which torch makes ``found``."""
    try:
        want, casts = predicted(rule, dtypes, zero_d=zero_d)
    except PromotionError as error:
        return [str(error)] if works(found) else []
    if works(found) and found != want.dtype:
        return [want]
    must_cast = found == REFUSED and set(dtypes) <= {*FLOATS} & kernels
    cannot = not (rule.needs_equal or rule.behaviour is Behaviour.MIXED)
    return [want] if must_cast and (cannot or not any(casts)) else []


@pytest.mark.parametrize("name", OP_RULES)
def test_rule(name):
    rule, call, count = OP_RULES[name], call_of(name), count_of(name)
    names = [*FLOATS, "int64", *(["complex64"] if count == 1 else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {x: live(call, x) for x in product(names, repeat=count)}
    kernels = {x for x in names if works(found[(x,) * count])}
    wrong = [
        (dtypes, given, *found_wrong)
        for dtypes, given in found.items()
        if (
            found_wrong := mistakes(rule, dtypes, given, kernels, zero_d=name in ZERO_D)
        )
    ]
    assert not wrong, wrong[:6]
    assert any(map(works, found.values())), "the call never works"
    floats = product({*FLOATS} & kernels, repeat=count)
    is_refused = any(found[x] == REFUSED for x in floats)
    assert is_refused == (rule.needs_equal or rule.behaviour is Behaviour.MIXED)


@pytest.mark.parametrize("name", [n for n in OP_RULES if count_of(n) > 1])
def test_casts_are_enough(name):
    """With the casts that the processor asks for, every op runs that has a kernel."""
    rule, call, count = OP_RULES[name], call_of(name), count_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernels = [x for x in FLOATS if works(live(call, (x,) * count))]
        for dtypes in product(kernels, repeat=count):
            want, casts = predicted(rule, dtypes, zero_d=name in ZERO_D)
            cast = [to or x for x, to in zip(dtypes, casts, strict=True)]
            if set(cast) <= set(kernels):
                found = live(call, cast)
                assert found in (want.dtype, want.computes), (dtypes, cast)


EXPANDED = {"cosine_similarity", "kron", "l1_loss", "mse_loss", "smooth_l1_loss"}
"""Ops that first give a 0-d operand the other's shape: then it is an array to them."""

ELEMENTWISE = [
    name
    for name, rule in OP_RULES.items()
    if name in BINARY - EXPANDED
    and rule.behaviour in (Behaviour.PROMOTE, Behaviour.INT_TO_FLOAT, Behaviour.BOOL)
    and not rule.needs_equal
]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_0d_operands(name):
    """A 0-d tensor lifts the kind of the other operand and nothing else."""
    call = call_of(name)
    names = [*FLOATS, "int64"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtypes in product(names, repeat=2):
            found = live(lambda x, y: call(x, y[0, 0]), dtypes)
            if works(found):
                want, casts = predicted(OP_RULES[name], dtypes, zero_d=True)
                assert (found, casts[1]) == (want.dtype, None), dtypes

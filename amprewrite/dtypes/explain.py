"""Explanations of a promotion: paths in the lattice, or the rule that decided."""

from collections.abc import Iterable, Sequence

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, OperandLike, ResultType, as_operand
from amprewrite.dtypes.promotion import result_type
from amprewrite.dtypes.systems.array_api import ArrayApiRules
from amprewrite.dtypes.systems.jax import JaxRules
from amprewrite.dtypes.systems.numpy import (
    Numpy1Rules,
    NumpyRules,
    as_array,
    counted,
    counts_values,
)
from amprewrite.dtypes.systems.torch import TorchRules

_KINDS = ("bool", "int", "float", "complex")


def explain(
    *operands: OperandLike, system: str = "jax", x64: bool = False
) -> tuple[ResultType, list[str]]:
    """Return the result type of the operands, and its derivation, one line a step.

    A line with arrows is a path in the lattice, from an operand's dtype to the
    result's.

    Raises:
        PromotionError: If there is no common dtype.
    """
    given = tuple(map(as_operand, operands))
    result = result_type(*given, system=system, x64=x64)
    match system:
        case "torch":
            return result, _why_torch(given, result)
        case "numpy":
            return result, _why_kinds(given, result, NumpyRules.lattice)
        case "numpy1":
            return result, _why_values(given, result)
        case "array-api":
            return result, _why_kinds(given, result, ArrayApiRules.lattice)
        case _:
            rules = JaxRules(x64=x64, strict=system == "jax-strict")
            return result, _why_jax(given, result, rules)


def _paths(lattice: Lattice, nodes: Iterable[str], top: str) -> list[str]:
    """Return the path of each node up to ``top``; nodes equal to it have none."""
    unequal = [node for node in dict.fromkeys(nodes) if node != top]
    return [" -> ".join(lattice.path(node, top)) for node in unequal]


def _why_jax(
    given: Sequence[Operand], result: ResultType, rules: JaxRules
) -> list[str]:
    narrowed = {x.dtype: rules.canonical(x.dtype) for x in given if not x.weak}
    why = [f"{a} is {b}: 64 bits are disabled" for a, b in narrowed.items() if a != b]
    weak = [x.weak and x.dtype != "bool" for x in given]
    if all(weak):
        return [*why, f"all are weak, so that the result is weak {result.dtype}"]
    nodes = [
        f"{x.kind}*" if w else rules.canonical(x.dtype)
        for x, w in zip(given, weak, strict=True)
    ]
    top = rules.lattice.join(nodes)
    why += [f"a weak {n[:-1]} is {n}" for n in dict.fromkeys(nodes) if n[-1] == "*"]
    why += _paths(rules.lattice, nodes, top) or [f"all are {top}"]
    if top != result.dtype:
        why.append(f"{top} alone is weak {result.dtype}")
    return why


def _why_torch(given: Sequence[Operand], result: ResultType) -> list[str]:
    """Derive the result from arrays, then 0-d tensors, then numbers, as torch does."""
    groups = {
        "arrays": [x for x in given if x.ndim and not x.weak],
        "0-d tensors": [x for x in given if not x.ndim and not x.weak],
        "numbers": [x for x in given if x.weak],
    }
    why: list[str] = []
    made: dict[str, str] = {}
    for name, group in groups.items():
        if group:
            made[name] = result_type(*group, system="torch").dtype
            if name != "numbers":
                dtypes = [x.dtype for x in group]
                why += _paths(TorchRules.lattice, dtypes, made[name])
            why.append(f"{name} make {made[name]}")
    names = list(made)
    for index, lower in enumerate(names[1:], start=1):
        stronger = " and ".join(names[:index])
        highest = max(_rank(made[name]) for name in names[:index])
        if _rank(made[lower]) > highest:
            why.append(f"{lower} are of a higher kind: they lift {stronger}")
        else:
            why.append(f"{lower} are of no higher kind: they adapt to {stronger}")
    return why if len(names) == 1 else [*why, f"together {result.dtype}"]


def _rank(dtype: str) -> int:
    return _KINDS.index(Operand(dtype).kind)


def _why_values(given: Sequence[Operand], result: ResultType) -> list[str]:
    """Derive the result in NumPy 1, where 0-d arrays and numbers may count by value."""
    arrays = [as_array(x) for x in given]
    names = [x.dtype for x in arrays]
    why: list[str] = []
    if counts_values(arrays):
        names = [x.dtype for x in arrays if x.ndim]
        for scalar in (x for x in arrays if not x.ndim):
            if scalar.value is None:
                why.append(f"{scalar}: every value of it makes {result.dtype}")
                continue
            (least,) = counted(scalar)
            signed = f" or {least.signed}" * least.either
            why.append(
                f"{scalar} of value {scalar.value} counts as {least.dtype}" + signed
            )
            is_signed = format_of(result.dtype).kind not in ("bool", "uint")
            names.append(least.signed if is_signed else least.dtype)
    elif all(not x.ndim for x in arrays):
        why.append("all are scalars: they count by dtype")
    elif not all(x.ndim for x in arrays):
        why.append("a scalar is of a higher kind than the arrays: all count by dtype")
    paths = _paths(Numpy1Rules.lattice, names, result.dtype)
    return list(dict.fromkeys([*why, *(paths or [f"all are {result.dtype}"])]))


def _why_kinds(
    given: Sequence[Operand], result: ResultType, lattice: Lattice
) -> list[str]:
    """Derive the result in NumPy 2 or the array API: numbers count by kind only."""
    strong = [x.dtype for x in given if not x.weak]
    numbers = [x.kind for x in given if x.weak]
    why = [
        f"a Python {kind} counts by its kind only" for kind in dict.fromkeys(numbers)
    ]
    if not strong:
        return [*why, f"alone it is {result.dtype}"]
    paths = _paths(lattice, strong, result.dtype)
    if not paths and format_of(result.dtype).kind != "bool" and numbers:
        why.append(f"{result.dtype} is of that kind or a higher one: it stays")
    return [*why, *(paths or [f"all arrays are {result.dtype}"])]

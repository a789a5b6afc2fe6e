"""Contractions: what is added to their results, and the roundings that a plan fixes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.ir.graph import factor_indices
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.context import Placed
from amprewrite.passes.analysis.demand import compute_demand
from amprewrite.plan.facts import has_kernel
from amprewrite.plan.hardware import OPERAND, Kernels
from amprewrite.policy import Matcher, OpClass, Policy, Reason
from amprewrite.policy.match import Match
from amprewrite.policy.model import ALLOW, FOLLOW, PROMOTE, Contract

# Find additions of a bias to a contraction, which a fused linear layer absorbs.
#
# ``x @ w + b`` is one op in a framework with a linear layer, and two in others.
# Promotion alone would return to full precision after every bias, since parameters are
# full: activations saved for the backward pass then took 0.92 of their bytes in
# float32, and 0.69 with the addition counted to the contraction (an Equinox transformer
# in bfloat16). The bias is added to the accumulator and the sum is rounded once.


def find_biases(graph: ProgramGraph, classes: Mapping[str, Match]) -> dict[str, str]:
    """Return the additions of a bias, by op name, each with its contraction."""
    if not any(op.accumulates for op in graph.ops):
        return {}
    inputs = _moved_inputs(graph, classes)
    found: dict[str, str] = {}
    for op in graph.ops:
        if op.canonical == "add" and classes[op.name].op_class is PROMOTE:
            for name, bias in _orders(op):
                source = _sole_source(graph, classes, name)
                smaller = bias in inputs and _is_smaller(inputs[bias], graph, name)
                if smaller and source is not None:
                    found[op.name] = source.name
    return found


def _is_smaller(given: Value, graph: ProgramGraph, name: str) -> bool:
    """Return whether an input has fewer elements, or as many in fewer dimensions.

    It has as many where the batch is one, or symbolic, which counts as one: whether an
    operand is a bias does not depend on that.
    """
    found = graph.values[name]
    fewer = given.elements < found.elements
    same = given.elements == found.elements
    return fewer or (same and len(given.shape) < len(found.shape))


def _orders(op: Op) -> tuple[tuple[str, str], ...]:
    """Return the two operands of ``op`` in both orders; empty for other ops."""
    match op.operands:
        case (one, other):
            return (one, other), (other, one)
        case _:
            return ()


def _moved_inputs(
    graph: ProgramGraph, classes: Mapping[str, Match]
) -> dict[str, Value]:
    """Return the input that each moved value is a copy of."""
    moved = {value.name: value for value in graph.inputs()}
    for op in graph.ops:
        moves = classes[op.name].op_class is FOLLOW and not op.mutates
        if moves and len(op.operands) == 1 and op.operands[0] in moved:
            moved.update(dict.fromkeys(op.results, moved[op.operands[0]]))
    return moved


def _sole_source(
    graph: ProgramGraph, classes: Mapping[str, Match], name: str
) -> Op | None:
    """Return the contraction that alone determines ``name``, through moves, if any."""
    while len(graph.users[name]) == 1 and name not in graph.outputs:
        maker = graph.producer.get(name)
        if maker is None:
            return None
        op_class = classes[maker.name].op_class
        if op_class is ALLOW and maker.accumulates:
            return maker
        if op_class is not FOLLOW or len(maker.operands) != 1:
            return None
        name = maker.operands[0]
    return None


# Residual additions, and the last contractions of the branches that they add.
#
# An addition is residual if one of its operands, the branch, contracts values that
# depend on the other, the skip: a sum without a contraction between is arithmetic, such
# as that of a gelu that is written out. Views, casts, dropout and constant factors
# between a value and the addition are looked through. Where the skip is the sum of
# another residual (x + attention(x) + mlp(x)), the skip of that counts too.

CONTRACTIONS = frozenset({"contraction", "convolution", "attention", "recurrent"})
"""Groups of ops of which a branch has one."""

_MOVES = ("movement", "cast", "dropout")
"""Groups of ops that pass a value on."""

_SCALES = ("div", "mul", "scale")
"""Ops that multiply by a number, where they have one operand."""

_PAIR = 2


@dataclass(frozen=True)
class ResidualAdd:
    """One residual addition.

    Attributes:
        op: The addition.
        branch: Index of the operand that the branch made.
        skips: The values that the branch may start from: the other operand, a value
            of which it is a view or a multiple, and the skips of the sum that it is.
    """

    op: Op
    branch: int
    skips: frozenset[str]

    @property
    def skip(self) -> int:
        """Index of the operand that is the skip."""
        return 1 - self.branch


def residual_adds(graph: ProgramGraph) -> Iterator[ResidualAdd]:
    """Yield each residual addition, in program order."""
    ancestry = _Ancestry(graph)
    carried: dict[str, frozenset[str]] = {}
    for op in graph.ops:
        if op.canonical != "add" or len(set(op.operands)) != _PAIR:
            continue
        for branch in (1, 0):
            skip = op.operands[1 - branch]
            moved = _moved(graph, skip)
            skips = frozenset({skip, moved}) | carried.get(moved, frozenset())
            if ancestry.contracts(op.operands[branch], skips):
                carried[op.results[0]] = skips
                yield ResidualAdd(op, branch, skips)
                break


def last_contractions(graph: ProgramGraph) -> frozenset[str]:
    """Return the ops that are the last contractions of residual branches.

    In a transformer they are the output projection of attention and the second layer
    of the MLP.
    """
    found: set[str] = set()
    for add in residual_adds(graph):
        known, waiting = set(add.skips), [add.op.operands[add.branch]]
        while waiting:
            name = waiting.pop()
            maker = graph.producer.get(name)
            if name in known or maker is None:
                continue
            known.add(name)
            if factor_indices(maker):
                found.add(maker.name)
            else:
                waiting.extend(maker.operands)
    return frozenset(found)


class _Ancestry:
    """Values that each value depends on, as bits of integers: programs are long."""

    def __init__(self, graph: ProgramGraph) -> None:
        self.bit: dict[str, int] = {}
        self.contracted: dict[str, int] = {}
        above: dict[str, int] = {}
        for op in graph.ops:
            every = below = 0
            for name in op.operands:
                every |= above.get(name, 0) | self._bit(name)
                below |= self.contracted.get(name, 0)
            if op.traits.group in CONTRACTIONS:
                below = every
            for name in op.results:
                above[name], self.contracted[name] = every, below

    def _bit(self, name: str) -> int:
        return self.bit.setdefault(name, 1 << len(self.bit))

    def contracts(self, name: str, ancestors: frozenset[str]) -> bool:
        """Return whether a contraction lies between a value and an ancestor."""
        wanted = 0
        for ancestor in ancestors:
            wanted |= self.bit.get(ancestor, 0)
        return bool(self.contracted.get(name, 0) & wanted)


def _moved(graph: ProgramGraph, name: str) -> str:
    """Return the value that ``name`` is a view, a cast, a dropout or a multiple of."""
    while (op := graph.producer.get(name)) and op.operands:
        scales = op.canonical in _SCALES and len(op.operands) == 1
        if op.traits.group not in _MOVES and not scales:
            break
        name = op.operands[0]
    return name


@dataclass(frozen=True, slots=True)
class Contracted:
    """Accumulator and derivative dtypes of one contraction.

    The attributes are those of :class:`amprewrite.plan.Decision`.
    """

    accumulator: str = ""
    derivative: str = ""
    derivative_accumulator: str = ""


NO_CONTRACTION = Contracted()
"""The dtypes of an op that contracts nothing."""


def contracted(
    op: Op, found: Match, placed: Placed, policy: Policy, kernels: Kernels
) -> Contracted:
    """Return the accumulator and derivative dtypes of ``op``; empty for other ops.

    A contraction that sums nothing runs in full precision, but its derivatives sum over
    all its repeats: where the framework allows it, they are low.

    Args:
        op: The op.
        found: Its class.
        placed: Its placement.
        policy: The policy.
        kernels: Accumulator dtypes of low contractions on the device.
    """
    low, full = policy.low, policy.full
    untouched = found.op_class is OpClass.KEEP or not low
    contracts = op.accumulates or op.contracted is not None
    if untouched or not contracts or placed.results[0] not in (low, full):
        return NO_CONTRACTION
    if not op.accumulates:  # the framework differentiates it as it runs
        return Contracted(placed.results[0], placed.precision, OPERAND)
    alone = found.reason is Reason.OUTER_PRODUCT
    derivative = low if alone else placed.precision
    sums = {"low": low, "full": full, "operand": OPERAND}[
        kernels.derivative_accumulator
    ]
    if derivative != low:
        sums = OPERAND
    wide = kernels.accumulators and placed.precision == low
    return Contracted(full if wide else placed.results[0], derivative, sums)


# Formats of 8 bits inside contractions, by the table ``[contract]`` of a policy.

NO_FORMATS = Contract()
"""Formats of an op that rounds nothing to 8 bits."""

_ANY_LOW = "bfloat16"
"""A low dtype by which ops are classed under a policy that has none."""


def contract_formats(
    graph: ProgramGraph, matcher: Matcher, classes: Mapping[str, Match]
) -> dict[str, Contract]:
    """Return the formats of each contraction that rounds to 8 bits, by op name.

    Those are the ones that the policy allows to be low, as they are in full precision
    under a policy without a low dtype. Exact arguments stay exact.

    Args:
        graph: The program.
        matcher: The policy and overrides.
        classes: Class of every op.
    """
    policy = matcher.policy
    if not policy.contract:
        return {}
    if not policy.low:
        policy = replace(policy, low=_ANY_LOW)
        shadow = Matcher(policy, matcher.overrides, matcher.full, matcher.used)
        classes = classify(graph, shadow)
    demands = compute_demand(graph, classes, ())
    spared: Collection[str] = ()
    if policy.contract.spare_residual:
        spared = last_contractions(graph)
    return {
        op.name: _with_kernel(graph, op, policy)
        for op in graph.ops
        if _may_round(graph, op, policy, classes[op.name])
        and not demands.is_exact(op)
        and op.name not in spared
    }


def _with_kernel(graph: ProgramGraph, op: Op, policy: Policy) -> Contract:
    """Return the formats of a contraction; emulated if no kernel takes it."""
    found = policy.contract
    if found.kernel == "emulated" or has_kernel(graph, op, found, policy.full):
        return found
    return replace(found, kernel="emulated")


def _may_round(graph: ProgramGraph, op: Op, policy: Policy, found: Match) -> bool:
    """Return whether ``op`` multiplies full-typed operands, and may do so low."""
    indices = factor_indices(op)
    return (
        bool(indices)
        and found.op_class is OpClass.ALLOW
        and not op.mutates
        and not op.reads
        and all(graph.is_dtype(op.operands[i], policy.full) for i in indices)
    )

"""Random valid program graphs and policies, and how to follow a value to its reader."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import note
from hypothesis import strategies as st

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.plan import Cast, Plan
from amprewrite.policy import OpClass, OpEntry, Policy, load_policy

OPS: Mapping[str, tuple[str, ...]] = {
    "allow": ("conv", "linear", "matmul", "scaled_dot_product_attention"),
    "deny": ("exp", "layer_norm", "mean", "sin", "softmax", "sum"),
    "accumulate": ("adaptive_avg_pool2d", "avg_pool1d", "batch_norm_inference"),
    "promote": ("add", "gelu", "index_add", "mul", "square", "sub"),
    "follow": ("cat", "clone", "embedding", "index", "relu", "select", "transpose"),
    "keep": (
        "argmax",
        "cast",
        "floor",
        "full",
        "round",
        "sort",
        "unknown",
        "zeros_like",
    ),
}
"""Canonical ops of every class of the policy bf16."""

VIEWS = ("select", "transpose", "view")
"""Ops whose result may share the storage of their operand."""

FLOATS = ("float32", "float32", "float32", "float32", "bfloat16", "float64")
DTYPES = (*FLOATS, *FLOATS, "int64", "bool")
SHAPES: tuple[tuple[int | str, ...], ...] = (
    (4, 8),
    (4, 8),
    (8,),
    (1, 4, 8),
    ("s0", 8),
    (),
)
NUMBERS = (0.5, -2.0, 1e-8, 1e9, -3.4e38, float("-inf"))


def _inputs(draw: Any) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("input", "parameter", "buffer", "constant")))
        twin = draw(st.sampled_from(sorted(values))) if values else None
        if twin and kind != "constant" and draw(st.integers(0, 4)) == 0:
            old = values[twin]
            values[f"i{number}"] = replace(old, name=f"i{number}", kind=kind)
            continue
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.sampled_from(SHAPES))
        values[f"i{number}"] = Value(f"i{number}", dtype, shape, kind)
    return values


def _facts(draw: Any, canonical: str, operands: tuple[str, ...]) -> dict[str, Any]:
    region = draw(st.sampled_from(("", "", "", "one", "two")))
    facts: dict[str, Any] = {
        "native": draw(st.sampled_from(("", f"aten.{canonical}.default"))),
        "path": draw(st.sampled_from(("", "body.0", "body.1"))),
        "region": region,
        "trips": {"": 1, "one": 3, "two": 0}[region],
        "fence": draw(st.sampled_from(("",) * 9 + ("left as it is",))),
        "operand_rule": draw(st.sampled_from(("equal", "equal", "promote", "lead"))),
        "literals": tuple(draw(st.lists(st.sampled_from(NUMBERS), max_size=2))),
        "chosen": draw(st.sampled_from(("", "", "pinned", "follows"))),
        "has_dtype_argument": draw(st.booleans()),
        "contracted": draw(st.sampled_from((None, None, 1, 8))),
    }
    if canonical in ("zeros_like", "cast"):
        facts["operand_rule"] = "any"
    if canonical in ("linear", "matmul"):
        facts["accumulates"] = draw(st.booleans())
    if canonical == "scaled_dot_product_attention" and len(operands) > 2:
        facts["masks"] = (2,)
    return facts


def _op(draw: Any, number: int, values: dict[str, Value]) -> Op:
    names = sorted(values)
    canonical = draw(st.sampled_from([op for ops in OPS.values() for op in ops]))
    least = 0 if canonical == "full" else 1
    most = 1 if canonical in (*VIEWS, "cast", "zeros_like") else 3
    operands = tuple(
        draw(st.lists(st.sampled_from(names), min_size=least, max_size=most))
    )
    facts = _facts(draw, canonical, operands)
    first = values[operands[0]] if operands else None
    made = [
        draw(st.sampled_from(DTYPES)) for _ in range(draw(st.sampled_from((1, 1, 2))))
    ]
    alias = ""
    if first and canonical in VIEWS:
        made, alias = [first.dtype], draw(st.sampled_from(("", first.alias)))
    elif first and canonical == "cast":
        made = [draw(st.sampled_from((*FLOATS, "int64")))]
        same = made == [first.dtype]
        alias = draw(st.sampled_from(("", first.alias))) if same else ""
        facts["dtype_argument"] = made[0]
    elif (
        first
        and canonical not in ("zeros_like", "argmax")
        and draw(st.integers(0, 4)) == 0
    ):
        made, alias = [first.dtype], first.alias
        facts["mutates"] = (0,)
    elif canonical in ("softmax", "sum") and draw(st.booleans()):
        facts["dtype_argument"] = draw(st.sampled_from(("float32", "float64")))
    results: list[str] = []
    for index, dtype in enumerate(made):
        name = f"v{number}.{index}"
        values[name] = Value(
            name, dtype, draw(st.sampled_from(SHAPES)), "result", alias
        )
        results.append(name)
    return Op(
        f"op{number}", canonical, operands=operands, results=tuple(results), **facts
    )


@st.composite
def graphs(draw: Any) -> ProgramGraph:
    """A graph that keeps all invariants, with tied storages and in-place writes."""
    values = _inputs(draw)
    ops = tuple(_op(draw, number, values) for number in range(draw(st.integers(0, 10))))
    outputs = draw(st.lists(st.sampled_from(sorted(values)), max_size=3))
    return ProgramGraph(values, ops, tuple(outputs), taped=draw(st.booleans()))


@st.composite
def policies(draw: Any) -> Policy:
    """A shipped policy with some switches and some classes changed."""
    policy = load_policy(
        draw(st.sampled_from(("bf16", "bf16-accumulate", "fp16", "autocast-cpu")))
    )
    names = st.sampled_from([op for ops in OPS.values() for op in ops])
    classes = st.sampled_from(OpClass).map(OpEntry)
    changed = draw(st.dictionaries(names, classes, max_size=3))
    note(f"ops changed: {changed}")  # a policy does not print its ops
    return replace(
        policy,
        ops={**policy.ops, **changed},
        demand=draw(st.booleans()),
        weak_parameters=draw(st.booleans()),
        lookups=draw(st.sampled_from(("low", "full"))),
        output=draw(st.sampled_from(("as-traced", "low", "full"))),
    )


@dataclass
class Followed:
    """Where the dtypes of a planned program come from.

    Attributes:
        made: Dtype in which each value is made.
        stored: Dtype in which it is kept, after the casts on the spot.
    """

    graph: ProgramGraph
    plan: Plan
    made: dict[str, str]
    stored: dict[str, str]

    def reaching(self, consumer: str, index: int, value: str) -> str:
        """Return the dtype in which ``value`` arrives at one of its readers.

        Every cast on the way must start from the dtype that the one before gives.
        """
        dtype = self.made[value]
        for cast in self.plan.casts:
            if cast.value == value and (consumer, index) in cast.uses:
                assert cast.from_dtype == dtype, f"{cast} does not start from {dtype}"
                dtype = cast.to_dtype
        return dtype


def follow(graph: ProgramGraph, plan: Plan) -> Followed:
    """Return what the decisions of ``plan`` say about every value."""
    made = {value.name: value.dtype for value in graph.inputs()}
    for op in graph.ops:
        made.update(zip(op.results, plan.by_op[op.name].results, strict=True))
    stored = dict(made)
    for cast in plan.casts:
        if cast.folding == "storage" or on_the_spot(cast):
            stored[cast.value] = cast.to_dtype
    return Followed(graph, plan, made, stored)


def on_the_spot(cast: Cast) -> bool:
    """Whether a cast turns a value into the dtype that it is kept in."""
    return cast.why in (
        "some op writes it in place in full precision",
        "it is returned, and its readers read what a caller gets",
    )


def read_in_full(graph: ProgramGraph, plan: Plan, name: str, full: str) -> bool:
    """Whether a weight, what it is moved from or what is moved from it is read full.

    A move of weights reads what it gets, unless the placement gave it a precision of
    its own.
    """
    weights = {v.name for v in graph.inputs("parameter", "buffer", "constant")}
    moves: list[Op] = []
    for op in graph.ops:
        follows = plan.by_op[op.name].op_class == OpClass.FOLLOW
        if (follows or op.canonical == "cast") and {*op.operands} <= weights:
            moves.append(op)
            weights |= {*op.results}
    family, before = {name}, 0
    while len(family) > before:
        before = len(family)
        for names in ({*op.operands, *op.results} for op in moves):
            family |= names if names & family else set()
    by_itself = (op.name for op in moves if plan.by_op[op.name].op_class != "follow")
    silent = {op.name for op in moves} - {*by_itself}
    arrives = follow(graph, plan).reaching
    return bool(family & {*graph.outputs}) or any(
        operand in family and arrives(op.name, index, operand) == full
        for op in graph.ops
        if op.name not in silent or plan.placement != "promote"
        for index, operand in enumerate(op.operands)
    )


def full_operands(graph: ProgramGraph, op: Op, full: str) -> tuple[int, ...]:
    """Return the indices of the operands that were traced in the full dtype."""
    return tuple(i for i, name in enumerate(op.operands) if graph.is_dtype(name, full))


def float_results(graph: ProgramGraph, op: Op) -> tuple[int, ...]:
    """Return the indices of the results that are floats."""
    return tuple(
        i for i, name in enumerate(op.results) if is_float(graph.values[name].dtype)
    )

"""Read an ATen-level fx graph as a program graph, with the way back to nodes."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.fx import GraphModule, Node

from amprewrite.dtypes import FORMATS, Behaviour, Rule, is_float
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import CaptureError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.ops import (
    MODEL,
    dtype_name,
    edges_of,
    module_path,
    named_modules,
    source_line,
)
from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.capture.promotion_tracing import READS
from amprewrite.frameworks.torch_fx.capture.warmup import has_values, try_run
from amprewrite.frameworks.torch_fx.compat import operators, pytrees, tensor_internals
from amprewrite.frameworks.torch_fx.executor import attribute
from amprewrite.ir import Op, ProgramGraph, Value, check_graph
from amprewrite.ir.graph import ValueKind
from amprewrite.marks import NOTE
from amprewrite.ops import traits_of
from amprewrite.runtime.collector import collector_paused

Leaves: TypeAlias = "str | list[Leaves] | None"
"""Names of the tensors in a node's value, in its structure; None for other parts."""


@dataclass
class Site:
    """Location of an op: its node, and the module with its graph."""

    node: Node
    owner: GraphModule


@dataclass
class Reading:
    """A program graph, with maps from its names to nodes.

    Attributes:
        graph: The neutral graph.
        module: The module that was read.
        sites: Op name to node.
        leaves: Node to the names of the tensors in its value, in its structure.
        weights: Name of a parameter, buffer or constant to its attribute paths.
        bodies: For a node that runs a body in place: the body, and the position of its
            first operand.
    """

    graph: ProgramGraph
    module: GraphModule
    sites: dict[str, Site]
    leaves: dict[Node, Leaves]
    weights: dict[str, tuple[str, ...]]
    bodies: dict[Node, tuple[GraphModule, int]]


@collector_paused()
def read(
    module: GraphModule,
    weights: Collection[str] = (),
    model: str = MODEL,
    part: str = "",
) -> Reading:
    """Return the program graph of ``module``, with the maps to its nodes.

    Args:
        module: ATen-level, pre-dispatch; every node carries ``meta["val"]``.
        weights: Names of placeholders that are parameters.
        model: The variable of a dynamo graph that holds the model.
        part: Path of the part of a model that ``module`` is a capture of.
    """
    return _Reader(module, frozenset(weights), model, part).read()


@dataclass
class _Scope:
    """State of reading one module: region and fence that its ops inherit."""

    owner: GraphModule
    prefix: str = ""
    outer: str = ""
    fence: str = ""
    inputs: list[Leaves] = field(default_factory=list["Leaves"])
    spans: int = 0
    region: str = field(init=False)

    def __post_init__(self) -> None:
        self.region = self.outer


class _Reader:
    def __init__(
        self, module: GraphModule, given: frozenset[str], model: str, part: str
    ) -> None:
        self.module, self.given, self.model, self.part = module, given, model, part
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.sites: dict[str, Site] = {}
        self.leaves: dict[Node, Leaves] = {}
        self.weights: dict[str, tuple[str, ...]] = {}
        self.tensors: dict[int, str] = {}
        self.storages: dict[int, str] = {}
        self.entered: set[str] = set()
        self.bodies: dict[Node, tuple[GraphModule, int]] = {}
        self.calls: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def read(self) -> Reading:
        outputs = self._read_scope(_Scope(self.module))
        names = tuple(held(outputs))
        graph = check_graph(ProgramGraph(self.values, tuple(self.ops), names))
        maps = self.sites, self.leaves, self.weights, self.bodies
        return Reading(graph, self.module, *maps)

    def _read_scope(self, scope: _Scope) -> Leaves:
        placeholders = iter(scope.inputs)
        outputs: Leaves = None
        for node in scope.owner.graph.nodes:
            match node.op:
                case "placeholder":
                    nested = bool(scope.prefix)
                    given = next(placeholders) if nested else self._input(node)
                    self.leaves[node] = given
                    self._join(given, node.meta.get("val"))
                case "get_attr":
                    self._attribute(scope, node)
                case "call_function":
                    self._call(scope, node)
                case "output":
                    outputs = self._names(node.args[0])
                case _:
                    pass  # a submodule that is called: guards, which hold no tensors
        return outputs

    def _names(self, structure: object) -> Leaves:
        """Return the structure with nodes replaced by names, other leaves by None."""
        if isinstance(structure, Node):
            return self.leaves.get(structure)
        parts = _parts(structure)
        return None if parts is None else [self._names(part) for part in parts]

    def _input(self, node: Node) -> Leaves:
        """Define a placeholder's value; return its name, or None for a number."""
        kind: ValueKind = "parameter" if node.name in self.given else "input"
        return self._define(node.name, node.meta.get("val"), kind)

    def _define(self, name: str, val: object, kind: ValueKind) -> Leaves:
        """Define each tensor of ``val``; return the names in its structure."""
        if isinstance(val, torch.Tensor):
            return self._enter(name, val, kind)
        if pytrees.is_sequence(val):
            return [self._define(f"{name}.{i}", v, kind) for i, v in enumerate(val)]
        return None

    def _join(self, leaves: Leaves, val: object) -> None:
        """Map the fake tensors of the same values in a body to their storages."""
        if isinstance(leaves, str) and isinstance(val, torch.Tensor):
            self.storages.setdefault(_storage(val), self.values[leaves].alias)
        elif isinstance(leaves, list) and pytrees.is_sequence(val):
            for part, other in zip(leaves, val, strict=True):
                self._join(part, other)

    def _enter(
        self,
        name: str,
        val: torch.Tensor,
        kind: ValueKind,
        numbers: tuple[float, ...] = (),
    ) -> str:
        extents = tensor_internals.extents(val)
        shape = tuple(d if isinstance(d, int) else str(d) for d in extents)
        alias = self.storages.setdefault(_storage(val), name)
        dtype = dtype_name(val.dtype)
        self.values[name] = Value(name, dtype, shape, kind, alias, numbers)
        return name

    def _attribute(self, scope: _Scope, node: Node) -> None:
        target = str(node.target)
        held = attribute(scope.owner, target)
        if not isinstance(held, torch.Tensor):
            self.leaves[node] = None
            return
        if id(held) in self.tensors:
            name = self.tensors[id(held)]
            self.weights[name] = (*self.weights[name], target)
        else:
            name = self.tensors[id(held)] = scope.prefix + node.name
            kind = _kind(scope.owner, target, held)
            numbers = () if kind == "parameter" else edges_of(held)
            self._enter(name, node.meta.get("val", held), kind, numbers)
            self.weights[name] = (target,)
        self.leaves[node] = name

    def _call(self, scope: _Scope, node: Node) -> None:
        if getattr(node.target, "__name__", "") == "getitem" and not _is_aten(node):
            source, index = pytrees.positional(node)
            structure = self.leaves.get(source)
            if isinstance(structure, list):
                self.leaves[node] = structure[index]
                self._join(structure[index], node.meta.get("val"))
                return
        self._watch_autocast(scope, node)
        self._watch_gradients(scope, node)
        region = region_body(node)
        if region is not None and not scope.fence:
            self._enter_region(scope, node, *region)
        else:
            self._op(scope, node)

    def _watch_autocast(self, scope: _Scope, node: Node) -> None:
        """Fence the nodes between the start and the end of an autocast region."""
        name = ops.region_name(node.target)
        if name in ops.AUTOCAST_SPAN:
            scope.spans += 1 if name == ops.AUTOCAST_SPAN[0] else -1
            scope.fence = ops.REGIONS["wrap_with_autocast"][1] if scope.spans else ""

    def _watch_gradients(self, scope: _Scope, node: Node) -> None:
        """Tag nodes that run in another gradient mode than the whole graph.

        A cast made without gradients must not be read by an op that is differentiated.
        """
        if ops.region_name(node.target) == ops.GRAD_SWITCH:
            other = node.args[0] is not torch.is_grad_enabled()
            scope.region = scope.prefix + node.name if other else scope.outer

    def _enter_region(self, scope: _Scope, node: Node, body: Node, fence: str) -> None:
        owner = own_body(scope.owner, body, self.entered)
        start = node.args.index(body) + 1
        start += ops.region_name(node.target) in ops.IDENTIFIER_ARGUMENT
        self.bodies[node] = owner, start
        inner = _Scope(
            owner=owner,
            prefix=f"{scope.prefix}{node.name}.",
            outer=scope.prefix + node.name,
            fence=fence,
            inputs=[self._names(arg) for arg in node.args[start:]],
        )
        self.leaves[node] = self._read_scope(inner)
        self._join(self.leaves[node], node.meta.get("val"))

    def _op(self, scope: _Scope, node: Node) -> None:
        name = scope.prefix + node.name
        canonical, native = ops.canonical_name(node), ops.native_name(node.target)
        used = occurrences(node)
        operands = tuple(v for source in used for v in held(self.leaves.get(source)))
        follows = canonical == "cast" and ops.names_tensor(node)
        reads = tuple(self._reads(node, used)) if READS in node.meta else ()
        mutated = {name for part in _mutated(node) for name in held(self._names(part))}
        if (same := ops.handed_back(node)) is not None:
            self._join(self.leaves.get(same), node.meta.get("val"))
        leaves = self.leaves[node] = self._define(name, node.meta.get("val"), "result")
        op = Op(
            name=name,
            canonical=canonical,
            native=native,
            operands=operands,
            results=tuple(held(leaves)),
            path=f"{self.part}.{module_path(node, self.model)}".strip("."),
            source=source_line(node),
            region=scope.region,
            fence=scope.fence or _fence(node, used),
            mutates=tuple(i for i, name in enumerate(operands) if name in mutated),
            operand_rule=ops.operand_rule(native, canonical),
            literals=tuple(number for _, number in ops.numbers(node)),
            dtype_argument=_dtype_argument(node, canonical),
            chosen="follows" if follows else node.meta.get(CHOSEN, ""),
            has_dtype_argument=traits_of(canonical, native).has_dtype_argument
            and ops.has_argument(node, "dtype"),
            contracted=ops.contracted_length(node, canonical),
            masks=tuple(_masks(node, operands, self.leaves)),
            reads=reads,
            asked=node.meta.get("custom", {}).get(NOTE, ""),
            calls=tuple(self._calls(node)),
        )
        self.ops.append(op)
        self.sites[name] = Site(node, scope.owner)

    def _calls(self, node: Node) -> Iterator[str]:
        """Yield the calls around a node of modules that are compounds by class."""
        for call, compound in named_modules(node):
            if call not in self.calls:
                self.counts[compound] += 1
                self.calls[call] = f"{compound}#{self.counts[compound]}"
            yield self.calls[call]

    def _reads(self, node: Node, used: Iterable[Node]) -> Iterator[str]:
        """Yield the dtype in which each operand is read after promotion."""
        for source in used:
            for name in held(self.leaves.get(source)):
                yield node.meta[READS].get(source, self.values[name].dtype)


def held(leaves: Leaves) -> Iterator[str]:
    """Yield the names of the tensors in a node's value, in order."""
    if isinstance(leaves, str):
        yield leaves
    elif leaves is not None:
        for part in leaves:
            yield from held(part)


def _parts(structure: Any) -> Sequence[object] | None:
    """Return the parts of a sequence or dict of arguments; None for another one."""
    if isinstance(structure, dict):
        return tuple(cast("dict[str, object]", structure).values())
    return structure if pytrees.is_sequence(structure) else None


def occurrences(node: Node) -> list[Node]:
    """Return every node among the arguments of ``node``, in call order, repeated."""
    found: list[Node] = []

    def note(used: Node) -> Node:
        found.append(used)
        return used

    torch.fx.map_arg((node.args, dict(node.kwargs)), note)
    return found


def _storage(val: torch.Tensor) -> int:
    """Return an identity of the storage; a sparse tensor has its own id instead."""
    try:
        return tensor_internals.storage_identity(val)
    except (NotImplementedError, RuntimeError):
        return id(val)


def _is_aten(node: Node) -> bool:
    return operators.is_overload(node.target)


def _kind(owner: GraphModule, target: str, held: torch.Tensor) -> ValueKind:
    if isinstance(held, torch.nn.Parameter):
        return "parameter"
    name = target.rpartition(".")[2]
    constant = name.startswith(("lifted_tensor", "_tensor_constant"))
    buffers = dict(owner.named_buffers(remove_duplicate=False))
    return "buffer" if target in buffers and not constant else "constant"


def _fence(node: Node, used: Iterable[Node]) -> str:
    if operators.is_higher_order(node.target):
        return f"{node.target.name()} has a body that is left as it was traced"
    values = [part.meta.get("val") for part in (node, *used)]
    layouts = {val.layout for val in values if isinstance(val, torch.Tensor)}
    if layouts - {torch.strided}:
        return "has a sparse operand or result, for which few kernels are low"
    return ""


def _mutated(node: Node) -> Iterator[object]:
    """Yield the arguments that the op writes in place."""
    if not _is_aten(node):
        return
    for formal in operators.formals(node.target):
        if formal.alias_info is not None and formal.alias_info.is_write:
            yield ops.argument(node, formal.name)


def _dtype_argument(node: Node, canonical: str) -> str:
    if not _is_aten(node):
        return ""
    if canonical == "cast":
        return dtype_name(node.meta["val"].dtype)
    given = ops.argument(node, "dtype")
    return dtype_name(given) if isinstance(given, torch.dtype) else ""


def _masks(
    node: Node, operands: tuple[str, ...], leaves: Mapping[Node, Leaves]
) -> Iterator[int]:
    mask = ops.argument(node, "attn_mask") if _is_aten(node) else None
    name = leaves.get(mask) if isinstance(mask, Node) else None
    if isinstance(name, str):
        yield operands.index(name)


def region_body(node: Node) -> tuple[Node, str] | None:
    """Return the body and fence of a higher-order op that runs its body in place."""
    position, fence = ops.REGIONS.get(ops.region_name(node.target), (None, ""))
    if position is None or position >= len(node.args) or node.kwargs:
        return None
    body = node.args[position]
    return (body, fence) if isinstance(body, Node) else None


def own_body(owner: GraphModule, body: Node, entered: set[str]) -> GraphModule:
    """Return the body as a module of its own; a body called twice is copied."""
    target = str(body.target)
    found = attribute(owner, target)
    if not isinstance(found, GraphModule):
        found = GraphModule(found, found.graph)
        setattr(owner, target, found)
    if target in entered:
        copy = GraphModule(found, torch.fx.Graph())
        copy.graph.output(copy.graph.graph_copy(found.graph, {}))
        target = f"{target}_{len(entered)}"
        setattr(owner, target, copy)
        body.target, found = target, copy
    entered.add(target)
    return found


# Refuse arguments of dtypes that the model itself refuses, before conversion.
#
# torch.export runs kernels on fake tensors, which accept operands of different dtypes
# where real ones raise: the captured program may fail at its first call, at a cast that
# was inserted.

_HALF = ("float16", "bfloat16")


def read_runnable(
    captured: Captured, request: Request, model: nn.Module, part: str = ""
) -> Reading:
    """Return the captured program, after checking that the arguments run through it.

    Args:
        captured: The program.
        request: The request, with the arguments.
        model: The model.
        part: Path of the model in the one of which it is a part.

    Raises:
        CaptureError: The model itself refuses the dtypes of its arguments.
    """
    reading = read(captured.module, part=part)
    if request.processor is None and request.has_arguments:
        args, kwargs = request.args or (), request.kwargs or {}
        refuse_unequal(reading.graph, model, args, kwargs)
    return reading


def written_constant(graph: ProgramGraph) -> str:
    """Return where a program writes to a constant; empty if it does nowhere.

    It is a copy of a tensor that is neither a parameter nor a buffer of the model.
    """
    constants = {value.alias for value in graph.inputs("constant")}
    for op in graph.ops:
        written = {graph.storage(op.operands[index]) for index in op.mutates}
        if op.canonical != "detach" and not written.isdisjoint(constants):
            return op.source or op.path or "the model"
    return ""


def refuse_unequal(
    graph: ProgramGraph,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Check that the model accepts the dtypes of its arguments.

    The model is called once, and only if some op has operands that torch refuses;
    arguments without values are judged by the rules of the ops alone.

    Args:
        graph: The model, captured on these arguments without promotion.
        model: The model.
        args: Positional call arguments.
        kwargs: Keyword call arguments.

    Raises:
        CaptureError: Names the op, the arguments that reach it, and their dtypes.
    """
    op = next((op for op in graph.ops if _refuses(graph, op)), None)
    if op is None:
        return
    if not has_values(model, args, kwargs):
        reason = "torch refuses operands of these dtypes"
        raise CaptureError(_refusal(graph, op, model, reason))
    try:
        try_run(model, model, args, kwargs)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise CaptureError(_refusal(graph, op, model, reason)) from error


def _refuses(graph: ProgramGraph, op: Op) -> bool:
    """Return whether the dtype rule of ``op`` says that torch refuses its operands."""
    rule = OP_RULES.get(op.canonical)
    if rule is None or op.fence or op.dtype_argument:
        return False
    dtypes = list(_operand_dtypes(graph, op, rule))
    if not dtypes:
        return False
    if rule.behaviour is Behaviour.MIXED:
        own, *others = dtypes
        wide = {own, "float32"} if own in _HALF else {own}
        return not wide.issuperset(others)
    whole = not any(is_float(dtype) or dtype.startswith("complex") for dtype in dtypes)
    return (rule.floats and whole) or (rule.needs_equal and len(set(dtypes)) > 1)


def _operand_dtypes(graph: ProgramGraph, op: Op, rule: Rule) -> Iterator[str]:
    """Yield the dtypes of the operands, without masks, indices and counts."""
    roles = rule.roles_of(len(op.operands))
    for name, role in zip(op.operands, roles, strict=True):
        dtype = graph.values[name].dtype
        if role != "-" and dtype in FORMATS:
            yield dtype


def _refusal(graph: ProgramGraph, op: Op, model: nn.Module, reason: str) -> str:
    given = _inputs_above(graph, op)
    held = dict.fromkeys(
        value.dtype for value in graph.inputs("parameter", "buffer") if value.is_float
    )
    odd = {name: dtype for name, dtype in given.items() if dtype not in held}
    found = "; ".join(f"argument {name} is {d}" for name, d in (odd or given).items())
    params = f"the model's parameters are {', '.join(held)}" if held else ""
    place = ": ".join(part for part in (op.source, op.path, op.canonical) if part)
    want = next(iter(held), "one dtype")
    cast = f"x.to(torch.{want})" if held else "x.to(dtype)"
    return (
        f"{type(model).__name__} fails on these arguments: "
        f"{', '.join(part for part in (found, params) if part)}; at {place}: {reason}; "
        f"want arguments of {want}: cast them, {cast}, or convert with "
        f'policy="promote", which casts operands to one dtype'
    )


def _inputs_above(graph: ProgramGraph, op: Op) -> dict[str, str]:
    """Return the arguments that ``op`` depends on, with their dtypes."""
    seen, waiting = set[str](), list(op.operands)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            maker = graph.producer.get(name)
            waiting.extend(maker.operands if maker else ())
    return {v.name: v.dtype for v in graph.inputs("input") if v.name in seen}

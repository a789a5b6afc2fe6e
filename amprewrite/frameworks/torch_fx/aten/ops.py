"""ATen ops: their canonical names, their arguments, and the dtypes of torch by name.

The canonical name of an op is the name of its ATen packet without the underscore of the
in-place form. The table of ops lists the exceptions, and this module the names that
depend on the arguments. A custom operator keeps its qualified name, such as
``mylib.scan``.
"""

import inspect
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias, cast

import torch
from torch.fx import Graph, Node

from amprewrite.dtypes.fits import FEW, edges
from amprewrite.frameworks.torch_fx.compat import operators, pytrees, tensor_internals
from amprewrite.frameworks.torch_fx.compat.pytrees import is_sequence, pytree
from amprewrite.ops import OperandRule, op_table, traits_of
from amprewrite.ops.compounds import class_compound
from amprewrite.user_code import Line, is_users, runs_users

Called: TypeAlias = Any
"""A call of an operator: a node, or a call that is being traced.

It has the attributes ``target``, ``args``, ``kwargs`` and ``meta`` of a node.
"""


def argument(node: Called, name: str) -> object:
    """Return the argument called ``name`` in the op's schema; its default if absent."""
    for index, formal in enumerate(operators.formals(node.target)):
        if formal.name == name:
            if index < len(node.args) and not formal.kwarg_only:
                return node.args[index]
            return node.kwargs.get(name, formal.default_value)
    return None


def tensor_slots(node: Called) -> Iterator[Any]:
    """Yield the arguments for tensors in the schema: also numbers and None."""
    for formal in operators.formals(node.target):
        kind, value = str(formal.type), argument(node, formal.name)
        if kind.startswith("List") and "Tensor" in kind and pytrees.is_sequence(value):
            yield from value
        elif "Tensor" in kind:
            yield value


def writes_first(node: Called) -> bool:
    """Return whether an op writes in place to its first argument."""
    formals = operators.formals(node.target)
    alias = formals[0].alias_info if formals else None
    return alias is not None and alias.is_write


NUMBER_TYPES = ("number", "Optional[number]", "Tensor")
"""Schema types of arguments with Python numbers that meet tensor elements.

``x + 1e-8`` is ``add.Tensor`` with a number in the place of a tensor.
"""

FILLS = ("value", "fill_value")
"""Names of arguments that fill elements, of any schema type."""


def numbers(node: Called) -> Iterator[tuple[str, float]]:
    """Yield the Python numbers among the arguments that meet tensor elements."""
    for formal in _numeric(node.target):
        found = argument(node, formal.name)
        if found == formal.default_value or isinstance(found, bool):
            continue
        if isinstance(found, (int, float)):
            yield formal.name, float(found)


@lru_cache(maxsize=1024)
def _numeric(target: Hashable) -> tuple[operators.Formal, ...]:
    """Return the arguments in the schema of ``target`` that may be such numbers."""
    return tuple(
        formal
        for formal in operators.formals(target)
        if str(formal.type) in NUMBER_TYPES or formal.name in FILLS
    )


def has_argument(node: Called, name: str) -> bool:
    """Return whether the schema of the op has an argument called ``name``."""
    return any(formal.name == name for formal in operators.formals(node.target))


def position(node: Called, name: str) -> tuple[int, bool]:
    """Return the schema position of an argument, and whether it is keyword-only."""
    for index, formal in enumerate(operators.formals(node.target)):
        if formal.name == name:
            return index, formal.kwarg_only
    msg = f"{node.target} has no argument {name!r}"
    raise LookupError(msg)


# The meaning of an einsum: one name of an op stands for sums, products and moves.
#
# torch multiplies operands pair by pair. A summed label that only one operand of a pair
# has is summed before the product; a dimension of extent 1 broadcasts, and does not
# have the label. An einsum of one operand multiplies nothing.

Extents = tuple[Any, ...]
"""Extents of a tensor: numbers and symbols."""

_ELLIPSIS = "..."
_TOKEN = re.compile(r"\.\.\.|[A-Za-z]")


def einsum_name(node: Called, name: str) -> str:
    """Return the canonical name of the computation of an einsum.

    Args:
        node: A call of ``aten.einsum``.
        name: The name that is returned for contractions, and where the shapes of the
            operands are not known.

    Returns:
        With one operand ``sum``, or ``diagonal`` or ``permute``, which move data; with
        several ``einsum_product`` if nothing is summed, ``einsum_sum`` if a label of
        only one operand is summed, else ``name``.
    """
    equation = _equation(node)
    if equation is None:
        return name
    summed = equation.summed
    if len(equation.terms) > 1:
        alone = any(equation.count(label) == 1 for label in summed)
        return "einsum_sum" if alone else name if summed else "einsum_product"
    (term,) = equation.terms
    if summed:
        return "sum"
    return "diagonal" if len(set(term)) < len(term) else "permute"


def einsum_length(node: Called) -> int | None:
    """Return the product of the extents of the summed labels; None if not known."""
    equation = _equation(node)
    if equation is None:
        return None
    lengths = [equation.extents[label] for label in equation.summed]
    return prod(lengths) if all(isinstance(n, int) for n in lengths) else None


@dataclass(frozen=True)
class _Equation:
    """An einsum with a label for each dimension, also for those behind an ellipsis.

    Attributes:
        terms: The labels of each operand.
        result: The labels of the result.
        shapes: Extents of each operand.
    """

    terms: Sequence[Sequence[str]]
    result: Sequence[str]
    shapes: Sequence[Extents]

    @property
    def extents(self) -> Mapping[str, Any]:
        """The extent of each label, after broadcasting."""
        extents: dict[str, Any] = {}
        for label, extent in self._dimensions():
            if not _is_unit(extent) or label not in extents:
                extents[label] = extent
        return extents

    @property
    def summed(self) -> list[str]:
        """The labels that are summed over more than one element."""
        return [
            label
            for label, extent in self.extents.items()
            if label not in self.result and not _is_unit(extent)
        ]

    def count(self, label: str) -> int:
        """Return the number of operands that have a label."""
        pairs = zip(self.terms, self.shapes, strict=True)
        return sum((label in _long(term, shape)) for term, shape in pairs)

    def _dimensions(self) -> Iterator[tuple[str, Any]]:
        for term, shape in zip(self.terms, self.shapes, strict=True):
            yield from zip(term, shape, strict=True)


def _long(term: Sequence[str], shape: Extents) -> set[str]:
    pairs = zip(term, shape, strict=True)
    return {label for label, extent in pairs if not _is_unit(extent)}


def _is_unit(extent: object) -> bool:
    return isinstance(extent, int) and extent == 1


def _equation(node: Called) -> _Equation | None:
    """Return the equation of a call; None without shapes, or if they do not fit it."""
    text, operands = argument(node, "equation"), argument(node, "tensors")
    if not isinstance(text, str) or not pytrees.is_sequence(operands):
        return None
    values = [x.meta.get("val") if isinstance(x, Node) else x for x in operands]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    shapes: list[Extents] = [tensor_internals.extents(tensor) for tensor in tensors]
    left, arrow, right = text.replace(" ", "").partition("->")
    tokens = [_TOKEN.findall(term) for term in left.split(",")]
    if not len(tokens) == len(shapes) == len(values):
        return None
    pairs = list(zip(tokens, shapes, strict=True))
    ranks = [len(shape) - len(term) + 1 for term, shape in pairs if _ELLIPSIS in term]
    rank = max(ranks, default=0)
    terms = [_spread(term, len(s) - len(term) + 1, rank) for term, s in pairs]
    if any(len(term) != len(shape) for term, shape in zip(terms, shapes, strict=True)):
        return None
    written = _TOKEN.findall(right) if arrow else _implied(tokens)
    return _Equation(terms, _spread(written, rank, rank), shapes)


def _spread(tokens: Sequence[str], rank: int, widest: int) -> list[str]:
    """Return labels with the last ``rank`` of ``widest`` dimensions for an ellipsis."""
    spread: list[str] = []
    for token in tokens:
        dimensions = [str(i) for i in range(widest - rank, widest)]
        spread.extend(dimensions if token == _ELLIPSIS else [token])
    return spread


def _implied(tokens: Sequence[Sequence[str]]) -> list[str]:
    """Return the result of an equation without an arrow: the labels that occur once."""
    used = [token for term in tokens for token in term]
    once = {token for token in used if used.count(token) == 1}
    return [*([_ELLIPSIS] * (_ELLIPSIS in used)), *sorted(once - {_ELLIPSIS})]


# Names of ops, and what ops with bodies are.

FRAMEWORK_ONLY = frozenset(("_assert_tensor_metadata",))
"""Packets that only check traced dtypes; dropped, because the dtypes change."""


def operand_rule(native: str, canonical: str) -> OperandRule:
    """Return the kernel's rule for different float dtypes; prims never promote."""
    if native.startswith("prims."):
        return "equal"
    return traits_of(canonical, native).operand_rule


REGIONS: Mapping[str, tuple[int, str]] = {
    "checkpoint_region": (0, ""),
    "invoke_subgraph": (0, ""),
    "tag_activation_checkpoint": (0, ""),
    "wrap": (0, ""),
    "wrap_with_autocast": (4, "inside an autocast region that the model writes"),
    "wrap_with_set_grad_enabled": (1, ""),
}
"""Higher-order ops with a body that runs once in place.

The position of the body among the arguments, and the reason why its ops must stay as
traced (empty if they may change). The operands follow the body. ``checkpoint_region``
is our own form of a checkpoint. Any other higher-order op is a fence: its body is left
as it was traced.
"""

IDENTIFIER_ARGUMENT = frozenset(("invoke_subgraph",))
"""Higher-order ops with an identifier between body and operands."""


AUTOCAST_SPAN = ("_enter_autocast", "_exit_autocast")
"""Calls around the ops of an autocast region of the model in a dynamo graph."""


GRAD_SWITCH = "_set_grad_enabled"
"""Call in a dynamo graph that sets the gradient mode of the ops after it."""


def handed_back(node: Node) -> Node | None:
    """Return the operand that an op returns itself, though fake tensors copy it.

    Of all operators in torch's own samples only ``dropout`` that drops nothing is one
    (measured, torch 2.13): its decomposition clones, its kernel does not.
    """
    if packet_name(node.target) != "dropout":
        return None
    source = argument(node, "input")
    drops = argument(node, "train") and argument(node, "p") != 0
    return source if isinstance(source, Node) and not drops else None


def region_name(target: object) -> str:
    """Return the name of an op that may hold a body; empty for ATen ops."""
    if operators.is_higher_order(target):
        return target.name()
    return "" if operators.is_overload(target) else getattr(target, "__name__", "")


def native_name(target: object) -> str:
    """Return the name of an op in plans: ``aten.linear.default``."""
    if operators.is_overload(target):
        return str(target)
    if operators.is_higher_order(target):
        return f"higher_order.{target.name()}"
    module = getattr(target, "__module__", "") or ""
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}"


def packet_name(target: object) -> str:
    """Return the name of an ATen op without its overload; empty for other ops."""
    return target.overloadpacket.__name__ if operators.is_overload(target) else ""


def canonical_name(node: Called) -> str:
    """Return the canonical name of the op that ``node`` calls."""
    target = node.target
    if not operators.is_overload(target):
        return native_name(target).rpartition(".")[2]
    packet = target.overloadpacket.__name__
    if target.namespace not in ("aten", "prims"):
        qualified = f"{target.namespace}::{packet}"
        return op_table().aten.get(qualified, qualified.replace("::", ".", 1))
    if operators.is_mutable(target) and packet.endswith("_"):
        packet = packet.removesuffix("_")
    name = op_table().aten.get(packet, packet)
    return REFINED[name](node, name) if name in REFINED else name


def _cast_or_move(node: Called, _name: str) -> str:
    """Return ``cast`` for ``to`` with a change of dtype; else it moves devices."""
    result, source = node.meta.get("val"), node.args[0]
    held = source.meta.get("val") if isinstance(source, Node) else None
    given = isinstance(argument(node, "dtype"), torch.dtype)
    changed = result is not None and held is not None and result.dtype != held.dtype
    return "cast" if given or changed or names_tensor(node) else "to"


def names_tensor(node: Called) -> bool:
    """Return whether a cast takes its dtype from a tensor argument.

    An integer tensor does not count: its dtype is as good as written.
    """
    other = argument(node, "other")
    val = other.meta.get("val") if isinstance(other, Node) else other
    is_tensor = isinstance(val, torch.Tensor)
    takes = packet_name(node.target) in ("to", "type_as")
    return takes and is_tensor and val.is_floating_point()


def _pow(node: Called, name: str) -> str:
    """Return ``integer_pow`` for small integer exponents, which are products."""
    exponent = node.args[1] if len(node.args) > 1 else None
    small = isinstance(exponent, (int, float)) and exponent in (2, 3, 4)
    return "integer_pow" if small else name


def _batch_norm(node: Called, name: str) -> str:
    """Return the inference form without training: it computes no statistics."""
    return f"{name}_inference" if argument(node, "training") is False else name


def _extremum(node: Called, name: str) -> str:
    """Return the name of an extremum by overload: indices, reduction or binary."""
    overload = str(node.target).rpartition(".")[2]
    if overload in ("dim", "names_dim"):
        return f"{name}_dim"
    return f"a{name}" if overload == "default" else f"{name}imum"


def _view(node: Called, name: str) -> str:
    """Return ``bitcast`` for ``view(dtype)``, which reinterprets bits."""
    return "bitcast" if str(node.target).endswith(".dtype") else name


def _with(option: str, other: str) -> Callable[[Called, str], str]:
    """Return a function that names an op ``other`` if it has an option."""
    return lambda node, name: other if argument(node, option) else name


_put = _with("accumulate", "scatter_add")  # repeated places add up


def _pad(node: Called, name: str) -> str:
    """Return the op of a padding mode."""
    mode, widths = argument(node, "mode"), argument(node, "pad")
    if mode == "circular":
        return "_pad_circular"
    if mode in ("reflect", "replicate") and isinstance(widths, (list, tuple)):
        kind = {"reflect": "reflection", "replicate": "replication"}[mode]
        return f"{kind}_pad{len(widths) // 2}d"  # pyright: ignore[reportUnknownArgumentType]
    return name


REFINED: Mapping[str, Callable[[Called, str], str]] = {
    "_to_copy": _cast_or_move,
    "_unsafe_index_put": _put,
    "batch_norm": _batch_norm,
    "div": _with("rounding_mode", "floor_divide"),  # a step function
    "einsum": einsum_name,
    "index_put": _put,
    "max": _extremum,
    "min": _extremum,
    "pad": _pad,
    "pow": _pow,
    "put": _put,
    "scatter": _with("reduce", "scatter_reduce"),
    "to": _cast_or_move,
    "type_as": _cast_or_move,
    "view": _view,
}
"""Functions that name ops by their arguments, by packet."""


def contracted_length(node: Node, canonical: str) -> int | None:
    """Return the length that a contraction sums over; None if not known."""
    shapes = [
        tuple(arg.meta["val"].shape)
        for arg in node.args
        if isinstance(arg, Node) and isinstance(arg.meta.get("val"), torch.Tensor)
    ]
    match canonical:
        case "linear" | "matmul" | "mv" if shapes and shapes[0]:
            length = shapes[0][-1]
        case "addmm" | "baddbmm" | "addmv" | "addbmm" if len(shapes) > 1:
            length = shapes[1][-1]
        case "conv" if len(shapes) > 1:
            length = prod(shapes[1][1:])
        case "tensordot" if shapes:
            summed: Any = argument(node, "dims_self")
            length = prod(shapes[0][dimension] for dimension in summed)
        case "einsum":
            return einsum_length(node)
        case _:
            return None
    return length if isinstance(length, int) else None


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called ``name``."""
    return getattr(torch, name)


def edges_of(tensor: torch.Tensor) -> tuple[float, ...]:
    """Return the numbers of a constant that a narrow format has not.

    See :func:`amprewrite.dtypes.fits.edges`; of a table, the least and the greatest.
    Tensors of other classes or layouts have none.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return ()
    if not tensor.is_floating_point() or not tensor.numel():
        return ()
    values: Any = tensor.detach()
    table = values.numel() > FEW
    if table:
        ends: Any = torch.stack(torch.aminmax(values))
        values = ends.unique()
        table = len(values) > 1
    numbers: list[Any] = values.reshape(-1).tolist()
    return edges(numbers, table=table)


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NO_MODULE = "_empty_nn_module_stack"
"""Prefix in module stacks of the sizes that export adds for varying extents."""


_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
"""Pattern of the local or global variable at the start of dynamo's paths."""

MODEL = "L['self']"
"""Variable at the start of paths in a graph of a module captured by dynamo."""


def model_variable(graph: Graph) -> str:
    """Return the variable in a dynamo graph that refers to its model.

    If a captured function calls one model, a global or a local, it is that variable, so
    that paths begin inside the model as they do for a module.
    """
    matches = (_ROOT.match(_stacked(node)) for node in graph.nodes)
    roots = {match.group() for match in matches if match}
    return roots.pop() if len(roots) == 1 else MODEL


def module_path(node: Node, model: str = MODEL) -> str:
    """Return the path of the innermost module around ``node``.

    Args:
        node: The node.
        model: The variable of the model, see :func:`model_variable`; any other variable
            stays as the first component of a path.
    """
    path = _ROOT.sub(r"\1", _stacked(node).replace(model, "", 1))
    path = path.replace("._modules['", ".").replace("']", "")
    path = re.sub(r"\['?(\w+)'?\]?", r".\1", path)
    return re.sub(r"_(modules|orig_mod)\.", "", path).lstrip(".")


def named_modules(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the calls of modules around a node that are compounds by their class.

    Those of torch's own classes run kernels with names of their own.

    Yields:
        A text that is the same for all nodes of one call, and the compound's name.
    """
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    for call, (_, kind) in stack.items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if name.startswith("torch."):
            continue
        if compound := class_compound(name.rpartition(".")[2]):
            yield call, compound


def _stacked(node: Node) -> str:
    """Return the path of the innermost module as the tracer records it."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if not path.startswith(_NO_MODULE)]
    return paths[-1] if paths else ""


def source_line(node: Node) -> str:
    """Return ``file:line`` of the innermost frame outside the framework."""
    frame = source_frame(node)
    if frame is None:
        return ""
    file, line = frame
    return f"{os.path.basename(file)}:{line}"  # noqa: PTH119  # 8 times faster than Path, once an op


def source_frame(node: Node) -> Line | None:
    """Return the innermost frame outside the framework; None if there is no frame."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    users = (frame for frame in reversed(frames) if is_users(frame[0]))
    file, line = next(users, frames[-1])
    return file, int(line)


def user_frames() -> list[Line]:
    """Return the frames that :func:`source_frame` may find for a node made now.

    They are the innermost frame outside the framework and, if it is another, the
    innermost ``forward``: most tracers record no other frames.
    """
    found: list[Line] = []
    frame = inspect.currentframe()  # inspect.stack reads every source file
    while frame is not None:
        code = frame.f_code
        is_forward = code.co_name == "forward"
        here = code.co_filename, frame.f_lineno
        if runs_users(frame):
            if not found or (is_forward and here not in found):
                found.append(here)
            if is_forward:
                break
        frame = frame.f_back
    return found


WHOLE = "output"
"""Name of an output that is one tensor."""


def named_tensors(output: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of ``output`` with their paths: ``past_key_values.0.1``.

    Path components are the keys of mappings (also of transformers' outputs), the fields
    of named tuples and dataclasses, and the positions in sequences and other registered
    containers.
    """
    if isinstance(output, torch.Tensor):
        yield path or WHOLE, output
        return
    for name, part in _parts(output):
        yield from named_tensors(part, f"{path}.{name}" if path else str(name))


def _parts(output: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(output, Mapping):
        yield from cast("Mapping[object, Any]", output).items()
    elif is_sequence(output):
        names = getattr(output, "_fields", range(len(output)))
        yield from zip(names, output, strict=True)
    elif is_dataclass(output) and not isinstance(output, type):
        yield from ((f.name, getattr(output, f.name)) for f in fields(output))
    elif not isinstance(output, (str, bytes, int, float, bool, type(None))):
        leaves = pytree.tree_leaves(output)
        if len(leaves) != 1 or leaves[0] is not output:
            yield from enumerate(leaves)

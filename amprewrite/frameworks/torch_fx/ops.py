"""How ATen spells the canonical ops, and what its kernels do with mixed dtypes.

The canonical name of an op is the name of its ATen packet without the underscore of
the in-place form; this module lists the exceptions. A custom operator keeps its
qualified name, such as ``mylib.scan``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx import _compat
from amprewrite.ir.graph import Mixing

CANONICAL: Mapping[str, str] = {
    "_convolution": "conv",
    "_log_softmax": "log_softmax",
    "_softmax": "softmax",
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "bmm": "matmul",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "conv_transpose1d": "conv_transpose",
    "conv_transpose2d": "conv_transpose",
    "conv_transpose3d": "conv_transpose",
    "convolution": "conv",
    "cudnn_batch_norm": "batch_norm",
    "divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "mm": "matmul",
    "multiply": "mul",
    "native_batch_norm": "batch_norm",
    "native_group_norm": "group_norm",
    "native_layer_norm": "layer_norm",
    "negative": "neg",
    "not_equal": "ne",
    "row_stack": "vstack",
    "special_digamma": "digamma",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_gammaln": "lgamma",
    "special_i0": "i0",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_multigammaln": "mvlgamma",
    "special_polygamma": "polygamma",
    "special_psi": "digamma",
    "special_round": "round",
    "special_sinc": "sinc",
    "special_softmax": "softmax",
    "subtract": "sub",
    "true_divide": "div",
    "upsample_bicubic2d_aa": "_upsample_bicubic2d_aa",
}
"""Packets that are another op under a different name. Sorted."""

FRAMEWORK_ONLY = frozenset(("_assert_tensor_metadata",))
"""Packets that check the traced dtypes; dropped, because the dtypes change."""

MIXING: Mapping[str, Mixing] = {
    **dict.fromkeys(
        ("add", "addcdiv", "addcmul", "div", "fmax", "fmin", "maximum", "minimum"),
        "promote",
    ),
    **dict.fromkeys(("mul", "rsub", "sub"), "promote"),
    **dict.fromkeys(
        ("batch_norm", "batch_norm_inference", "group_norm", "instance_norm"), "lead"
    ),
    **dict.fromkeys(("layer_norm", "masked_fill", "rms_norm"), "lead"),
    **dict.fromkeys(("cast", "copy", "empty_like", "full_like", "new_empty"), "any"),
    **dict.fromkeys(("new_empty_strided", "new_full", "new_ones", "new_zeros"), "any"),
    **dict.fromkeys(("ones_like", "rand_like", "randint_like", "randn_like"), "any"),
    **dict.fromkeys(("zeros_like", "sym_size", "sym_stride", "sym_numel"), "any"),
    **dict.fromkeys(("size", "stride", "numel", "sym_storage_offset", "dim"), "any"),
}
"""What kernels do with operands of different float dtypes; ``equal`` if not listed.

Source: run on CPU in eager, mixed float32 and bfloat16 operands. ``cat``, ``where``
and the in-place scatters are left at equal: not every overload and device promotes.
"""

REGIONS: Mapping[str, tuple[int, str]] = {
    "checkpoint_region": (0, ""),
    "invoke_subgraph": (0, ""),
    "tag_activation_checkpoint": (0, ""),
    "wrap": (0, ""),
    "wrap_with_autocast": (4, "inside an autocast region that the model writes"),
    "wrap_with_set_grad_enabled": (1, ""),
}
"""Higher-order ops whose body runs once where it stands: position of the body among
the arguments, and why its ops must stay as traced (empty if they may change). The
operands follow the body. ``checkpoint_region`` is our own form of a checkpoint. Any other higher-order op is a fence: body untouched."""

IDENTIFIER_ARGUMENT = frozenset(("invoke_subgraph",))
"""Higher-order ops with one more argument, a name, between body and operands."""


AUTOCAST_SPAN = ("_enter_autocast", "_exit_autocast")
"""Calls between which dynamo leaves the ops of an autocast region of the model."""


def region_name(target: object) -> str:
    """Return the name of an op that may hold a body; empty for ATen ops."""
    if isinstance(target, _compat.HigherOrderOperator):
        return target.name()
    return (
        ""
        if isinstance(target, _compat.OpOverload)
        else getattr(target, "__name__", "")
    )


def native_name(target: object) -> str:
    """Return the name of an op as plans show it: ``aten.linear.default``."""
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001  # no public name
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):  # noqa: SLF001  # no public name
        return f"higher_order.{target.name()}"
    module = getattr(target, "__module__", "") or ""
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}"


def canonical_name(node: Node) -> str:
    """Return the canonical name of the op that ``node`` calls."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):  # noqa: SLF001  # no public name
        return native_name(target).rpartition(".")[2]
    if target.namespace not in ("aten", "prims"):
        return native_name(target).rpartition(".")[0]
    packet = target.overloadpacket.__name__
    if target._schema.is_mutable and packet.endswith("_"):  # noqa: SLF001  # no public name
        packet = packet.removesuffix("_")
    name = CANONICAL.get(packet, packet)
    return REFINED[name](node, name) if name in REFINED else name


def _formals(node: Node) -> Sequence[Any]:
    """Return the formal arguments of an ATen op; none for anything else."""
    schema = getattr(node.target, "_schema", None)
    return schema.arguments if schema is not None else ()


def argument(node: Node, name: str) -> object:
    """Return the argument called ``name`` in the op's schema; its default if absent."""
    for index, formal in enumerate(_formals(node)):
        if formal.name == name:
            if index < len(node.args) and not formal.kwarg_only:
                return node.args[index]
            return node.kwargs.get(name, formal.default_value)
    return None


def _cast_or_move(node: Node, name: str) -> str:
    """``to`` with a dtype is a user cast; without, it moves between devices."""
    result, source = node.meta.get("val"), node.args[0]
    held = source.meta.get("val") if isinstance(source, Node) else None
    given = isinstance(argument(node, "dtype"), torch.dtype)
    changed = result is not None and held is not None and result.dtype != held.dtype
    return "cast" if given or changed else "to"


def _pow(node: Node, name: str) -> str:
    """A small integer exponent is a product, not a power of two reals."""
    exponent = node.args[1] if len(node.args) > 1 else None
    return "integer_pow" if exponent in (2, 3, 4) else name


def _batch_norm(node: Node, name: str) -> str:
    """Without training no statistics are computed."""
    return name if argument(node, "training") else f"{name}_inference"


def _divide(node: Node, name: str) -> str:
    """With a rounding mode a division is a step."""
    return "floor_divide" if argument(node, "rounding_mode") else name


def _extremum(node: Node, name: str) -> str:
    """The overload over a dimension gives indices, the binary one is a maximum."""
    overload = str(node.target).rpartition(".")[2]
    if overload in ("dim", "names_dim"):
        return f"{name}_dim"
    return (
        {"max": "amax", "min": "amin"}[name] if overload == "default" else f"{name}imum"
    )


def _view(node: Node, name: str) -> str:
    """``view(dtype)`` reinterprets bits."""
    return "bitcast" if str(node.target).endswith(".dtype") else name


def _scatter(node: Node, name: str) -> str:
    """With a reduction, values at repeated places are combined."""
    return "scatter_reduce" if argument(node, "reduce") else name


REFINED: Mapping[str, Callable[[Node, str], str]] = {
    "_to_copy": _cast_or_move,
    "batch_norm": _batch_norm,
    "div": _divide,
    "max": _extremum,
    "min": _extremum,
    "pow": _pow,
    "scatter": _scatter,
    "to": _cast_or_move,
    "type_as": _cast_or_move,
    "view": _view,
}
"""Names that depend on the arguments."""


def contracted_length(node: Node, canonical: str) -> int | None:
    """Return the length over which a contraction sums; None if not known."""
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
        case "einsum":
            return _einsum_length(node)
        case _:
            return None
    return length if isinstance(length, int) else None


def _einsum_length(node: Node) -> int | None:
    """Return the product of the extents of the labels that vanish."""
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return None
    terms, result = equation.replace(" ", "").split("->")
    shapes = [arg.meta["val"].shape for arg in operands]  # pyright: ignore
    extents = {
        label: extent
        for term, shape in zip(terms.split(","), shapes, strict=True)
        for label, extent in zip(term, shape, strict=True)
    }
    lengths = [extent for label, extent in extents.items() if label not in result]
    return prod(lengths) if all(isinstance(n, int) for n in lengths) else None


NUMBER_TYPES = ("number", "Optional[number]")
"""Schema types of Python numbers that meet tensor elements."""

FILLS = ("value", "fill_value")
"""Names of arguments that fill elements, whatever their schema type."""


def numbers(node: Node) -> Iterator[tuple[str, float]]:
    """Yield the Python numbers among the arguments that meet tensor elements."""
    for formal in _formals(node):
        if str(formal.type) in NUMBER_TYPES or formal.name in FILLS:
            found = argument(node, formal.name)
            if found == formal.default_value:
                continue
            if isinstance(found, (int, float)) and not isinstance(found, bool):
                yield formal.name, float(found)


def has_argument(node: Node, name: str) -> bool:
    """Return whether the schema of the op has an argument called ``name``."""
    return any(formal.name == name for formal in _formals(node))


def position(node: Node, name: str) -> tuple[int, bool]:
    """Return the position of an argument in the schema, and whether it has none."""
    for index, formal in enumerate(_formals(node)):
        if formal.name == name:
            return index, formal.kwarg_only
    msg = f"{node.target} has no argument {name!r}"
    raise LookupError(msg)

"""ATen spellings of the canonical ops, and of ops with bodies.

The canonical name of an op is the name of its ATen packet without the underscore of the
in-place form; the table of ops lists the exceptions, and this module the names that
depend on the arguments. A custom operator keeps its qualified name, such as
``mylib.scan``.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.arguments import Called, argument
from amprewrite.frameworks.torch_fx.aten.einsum import einsum_length, einsum_name
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.ops import OperandRule, op_table, traits_of

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


def _divide(node: Called, name: str) -> str:
    """Return ``floor_divide`` with a rounding mode: a step function."""
    return "floor_divide" if argument(node, "rounding_mode") else name


def _extremum(node: Called, name: str) -> str:
    """Return the name of an extremum by overload: indices, reduction or binary."""
    overload = str(node.target).rpartition(".")[2]
    if overload in ("dim", "names_dim"):
        return f"{name}_dim"
    return (
        {"max": "amax", "min": "amin"}[name] if overload == "default" else f"{name}imum"
    )


def _view(node: Called, name: str) -> str:
    """Return ``bitcast`` for ``view(dtype)``, which reinterprets bits."""
    return "bitcast" if str(node.target).endswith(".dtype") else name


def _scatter(node: Called, name: str) -> str:
    """Return ``scatter_reduce`` with a reduction, which combines repeated places."""
    return "scatter_reduce" if argument(node, "reduce") else name


def _put(node: Called, name: str) -> str:
    """Return ``scatter_add`` for an accumulating put: repeated places add up."""
    return "scatter_add" if argument(node, "accumulate") else name


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
    "div": _divide,
    "einsum": einsum_name,
    "index_put": _put,
    "max": _extremum,
    "min": _extremum,
    "pad": _pad,
    "pow": _pow,
    "put": _put,
    "scatter": _scatter,
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

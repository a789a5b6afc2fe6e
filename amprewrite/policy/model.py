"""A policy in memory: classes of ops, rules, dtypes and switches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from amprewrite.ir import Op
from amprewrite.ops import op_keys as keys_of_names

# Formats inside contractions: the table ``[contract]`` of a policy.

Scaling = Literal["none", "current"]
"""Scale of a quantised tensor: none, or one from its own largest number."""

Kernel = Literal["emulated", "auto", "scaled_mm"]
"""Kernel of a quantised product, see :class:`Contract`."""


@dataclass(frozen=True, slots=True)
class Contract:
    """Number formats to which contractions round operands and gradients.

    Values between ops stay in the dtypes of the policy: the formats are those inside of
    contractions.

    Attributes:
        forward: Format of the operands, in the forward pass and as the backward pass
            reads them; empty if they are not rounded.
        backward: Format of the gradient that arrives; empty if it is not rounded.
        scaling: ``current``: each tensor times a power of two, by which its largest
            number comes near that of the format, and back. ``none``: no scale.
        spare_residual: Whether the last contractions before the addition of a residual
            branch are left out: their operands grow in training.
            Source: u-muP, arXiv 2407.17465, section 4.2.
        kernel: ``emulated``: operands are rounded, and multiplied in the dtype that
            they are stored in, on any device. ``scaled_mm``: matrix products of torch
            by its kernel for 8 bits; a device without one is refused. ``auto``: the
            kernel where a CUDA device has one, else emulated; sums may then be in
            another order on another device.
    """

    forward: str = ""
    backward: str = ""
    scaling: Scaling = "none"
    spare_residual: bool = False
    kernel: Kernel = "emulated"

    def __bool__(self) -> bool:
        """Return whether anything is rounded."""
        return bool(self.forward or self.backward)


class OpClass(StrEnum):
    """Class of an op in a policy; the words are those of the field, see docs/words.md.

    The classes correspond to torch autocast's lower_precision_fp, fp32 (and
    fp32_set_opt_dtype) and promote, and to TensorFlow's allow, deny, infer and clear.
    """

    ALLOW = "allow"
    """Computes in low precision: contractions, attention."""
    DENY = "deny"
    """Reads full-precision operands and returns a full-precision result."""
    ACCUMULATE = "accumulate"
    """Full precision inside the kernel; operands and result may be stored low."""
    PROMOTE = "promote"
    """Computes in the promoted dtype of its operands."""
    FOLLOW = "follow"
    """Moves data, bit-exact under a cast, in the dtype of its operand."""
    KEEP = "keep"
    """Never touched: runs at the dtypes it was traced with."""


ALLOW, DENY, ACCUMULATE, PROMOTE, FOLLOW, KEEP = OpClass
"""The members, for code that asks for them at every op.

Python 3.11 takes four times as long to find a member in its class as a global name.
"""


@dataclass(frozen=True, slots=True)
class OpEntry:
    """Entry of a policy for one op.

    Attributes:
        op_class: The class.
        why: The reason.
        group: The group with the line in ``[groups]``; empty where ``[ops]`` has a line
            for the op.
    """

    op_class: OpClass
    why: str = ""
    group: str = ""


KEYS = ("path", "group", "op", "native", "op_name", "source")
"""Keys by which a rule may match an op."""

WILDCARDS = frozenset("*?[")
"""Characters that make a pattern a glob."""


def op_keys(op: Op) -> tuple[str, ...]:
    """Return the names under which ``[ops]`` may hold ``op``, most exact first."""
    return tuple(keys_of_names(op.canonical, op.native))


def key_values(key: str, op: Op) -> tuple[str, ...]:
    """Return the texts that a rule's ``key`` is compared with, for one op."""
    match key:
        case "path":
            return (op.path,)
        case "group":
            return (op.traits.group,)
        case "op":
            return op_keys(op)
        case "native":
            return (op.native,)
        case "op_name":
            return (op.name,)
        case _:
            return (op.source,)


def path_matches(glob: str, path: str) -> bool:
    """Return whether ``glob`` matches a module path: see :attr:`Rule.path`."""
    if WILDCARDS.isdisjoint(glob):
        return path == glob or (glob != "" and path.startswith(f"{glob}."))
    return fnmatchcase(path, glob)


def key_matches(key: str, glob: str, op: Op) -> bool:
    """Return whether ``glob`` matches ``op`` by ``key``."""
    if key == "path":
        return path_matches(glob, op.path)
    return any(fnmatchcase(text, glob) for text in key_values(key, op))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule: keys that match ops, and the class of the ops that match.

    All keys are shell-style globs, and all that are given must match.

    Attributes:
        op_class: The class (``class`` in a file or a table).
        path: Module path. Without a wildcard it matches the module and everything in
            it: ``encoder.1`` is ``encoder.1`` and ``encoder.1.norm``, and not
            ``encoder.10``. With one it is a glob over the whole path, in which ``*``
            also matches dots: ``encoder.1.*`` is everything below ``encoder.1``,
            ``*.norm`` every module called ``norm``, and ``encoder.1*`` also
            ``encoder.10``.
        group: Group of ops, such as ``normalisation``; ``ops.toml`` has them all.
        op: Canonical name, such as ``softmax``, or a native one, such as
            ``mylib::scan``.
        native: The framework's name, such as ``aten.softmax.int``.
        op_name: A decision's ``op``: one op of one graph.
        source: ``file:line`` of the user's code.
        why: The reason, shown with every decision that the rule makes.
    """

    op_class: OpClass
    path: str | None = None
    group: str | None = None
    op: str | None = None
    native: str | None = None
    op_name: str | None = None
    source: str | None = None
    why: str = ""

    def matches(self, op: Op) -> bool:
        """Return whether every key that is given matches ``op``."""
        return all(key_matches(key, glob, op) for key, glob in self.keys.items())

    def names_one_of(self, paths: Iterable[str]) -> bool:
        """Return whether the rule has a path, which matches one of ``paths``."""
        glob = self.path
        return glob is not None and any(path_matches(glob, path) for path in paths)

    @property
    def keys(self) -> dict[str, str]:
        """The keys that are given, with their globs."""
        given = {key: getattr(self, key) for key in KEYS}
        return {key: glob for key, glob in given.items() if glob is not None}

    def __str__(self) -> str:
        """Return the keys and the action, as a table in one line."""
        given = [f"{key} = {glob!r}" for key, glob in self.keys.items() if glob]
        return f"{{ {', '.join([*given, f'class = {str(self.op_class)!r}'])} }}"


@dataclass(frozen=True)
class Policy:
    """A whole policy; files describe it, see ``policies/bf16.toml``.

    Attributes:
        name: Name of a shipped policy, or the path of a file.
        low: Name of the low dtype; empty if nothing is lowered.
        full: Name of the full dtype; only values of this dtype are lowered.
        output: ``as-traced``, ``low``, ``full`` or the name of a dtype.
        ops: Classes by canonical or native name, those of all members of the groups
            that a file names among them; left out of ``repr``, which they would make
            70 kB long.
        rules: Tried in order before ``ops``; the first that matches wins.
        demand: Whether ops that move or combine values run in full precision where
            all their users demand it; in torch.autocast they do not.
        weak_parameters: Whether a parameter of lower rank than the result adapts to
            the other operand, so that a bias does not bring a value back to full.
        lookups: Dtype class in which a table that is only looked up (an embedding)
            is stored when weights are stored low: ``low`` or ``full``.
        promotion: Name of the promotion system by which operands of different dtypes
            are promoted; empty to leave that to the framework, which may refuse them.
        truncate_complex: Whether promotion may cast complex numbers to real ones.
        contract: Formats inside contractions.
    """

    name: str
    low: str = ""
    full: str = "float32"
    output: str = "as-traced"
    ops: Mapping[str, OpEntry] = field(default_factory=dict[str, OpEntry], repr=False)
    rules: tuple[Rule, ...] = ()
    demand: bool = True
    weak_parameters: bool = False
    lookups: Literal["low", "full"] = "full"
    promotion: str = ""
    truncate_complex: bool = False
    contract: Contract = field(default_factory=Contract)

"""A policy in memory: classes of ops, rules, dtypes and switches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from amprewrite.ir import Op


class OpClass(StrEnum):
    """What a policy says about an op; the words of the field in the docs.

    The classes correspond to torch autocast's lower_precision_fp, fp32 (and
    fp32_set_opt_dtype) and promote, and to TensorFlow's allow, deny, infer and clear.
    """

    ALLOW = "allow"
    """Runs in low precision: contractions, attention."""
    DENY = "deny"
    """Operands and result are full precision."""
    ACCUMULATE = "accumulate"
    """Full precision inside the kernel; operands and result may be stored low."""
    PROMOTE = "promote"
    """Runs in the promoted dtype of its operands."""
    FOLLOW = "follow"
    """Moves data: stores what it is given, bit-exact under a cast."""
    KEEP = "keep"
    """Never touched: runs at the dtypes it was traced with."""


@dataclass(frozen=True, slots=True)
class OpEntry:
    """One line of a policy's ``[ops]``: the class of an op, and why."""

    op_class: OpClass
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Keys that match an op, and the class that it then has.

    All keys are shell-style globs, and all that are given must match.

    Attributes:
        op_class: The class (``class`` in a file or a table).
        path: Module path, such as ``decoder.*.norm``.
        op: Canonical name, such as ``softmax``.
        native: The framework's name, such as ``aten.softmax.int``.
        op_name: A decision's ``op``: one op of one graph.
        source: ``file:line`` of the user's code.
        why: The reason, shown with every decision that the rule makes.
    """

    op_class: OpClass
    path: str | None = None
    op: str | None = None
    native: str | None = None
    op_name: str | None = None
    source: str | None = None
    why: str = ""

    def matches(self, op: Op) -> bool:
        """Return whether every key that is given matches ``op``."""
        pairs = (
            (self.path, op.path),
            (self.op, op.canonical),
            (self.native, op.native),
            (self.op_name, op.name),
            (self.source, op.source),
        )
        return all(glob is None or fnmatchcase(text, glob) for glob, text in pairs)

    def __str__(self) -> str:
        """Return the keys and the action, as a table in one line."""
        keys = ("path", "op", "native", "op_name", "source")
        given = [f"{k} = {getattr(self, k)!r}" for k in keys if getattr(self, k)]
        return f"{{ {', '.join([*given, f'class = {str(self.op_class)!r}'])} }}"


@dataclass(frozen=True)
class Policy:
    """A whole policy; files describe it, see ``policies/bf16.toml``.

    Attributes:
        name: Name of a shipped policy, or the path of a file.
        low: Name of the low dtype; empty if nothing is lowered.
        full: Name of the full dtype; only values of this dtype are lowered.
        output: ``as-traced``, ``low``, ``full`` or the name of a dtype.
        ops: Classes by canonical or native name; left out of ``repr``, which they
            would make 70 kB long.
        rules: Tried in order before ``ops``; the first that matches wins.
        demand: Whether ops that move or combine values run in full precision where
            all their users want it (DESIGN: demand); torch.autocast does not.
        weak_parameters: Whether a parameter of lower rank than the result adapts to
            the other operand, so that a bias does not bring a value back to full.
        lookups: Dtype class in which a table that is only looked up (an embedding)
            is stored when weights are stored low: ``low`` or ``full``.
        promotion: Name of the promotion system by which operands of different dtypes
            are promoted; empty to leave that to the framework, which may refuse them.
        truncate_complex: Whether promotion may cast complex numbers to real ones.
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

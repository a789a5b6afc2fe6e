"""Load a policy by name, file or jmp string, with the policies that it extends."""

import stat
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from amprewrite import errors
from amprewrite.dtypes import from_short_name
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS
from amprewrite.errors import AmpError, PolicyError
from amprewrite.ir import REGION_BOUNDARIES
from amprewrite.ops import op_table
from amprewrite.policy.model import Contract, OpEntry, Policy, Scaling
from amprewrite.policy.spelling import near

if TYPE_CHECKING:
    from amprewrite.policy.schema import PolicyFile


# Read a small text file of unknown origin, within limits.


def read_text(
    path: Path, largest: int, want: str, refuse: Callable[[str], AmpError]
) -> str:
    """Return the text of the regular file at ``path``.

    A pipe or a device is refused before it is opened: reading it may never end.

    Args:
        path: The file.
        largest: Most bytes that it may have.
        want: Description of the expected file, for messages: ``a TOML file``.
        refuse: Makes the error for a path that is no regular file, is too large, cannot
            be read, or is no UTF-8.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            raise refuse(f"cannot be read (it is {kind}); want {want}")
        with path.open("rb") as file:
            data = file.read(largest + 1)  # it may grow while it is read
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        if isinstance(error, AmpError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot be read ({reason}); want {want}") from error
    if len(data) > largest:
        raise refuse(f"has more than {largest:,} bytes; want {want} of at most that")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(f"is no text in UTF-8 ({error}); want {want}") from error


# Names of shipped policies: their own, dtypes, and those of Keras and Lightning.


class DtypeLike(Protocol):
    """A dtype object: ``torch.bfloat16``, ``numpy.dtype("float16")``."""

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        ...


PolicyLike: TypeAlias = str | Path | Policy | type | DtypeLike
"""Types accepted as a policy, see :func:`amprewrite.load_policy`."""

DTYPE_POLICIES = {"bfloat16": "bf16", "float16": "fp16", "float32": "off"}
"""Shipped policy for each dtype to compute in: float32 lowers nothing."""

ALIASES = {
    **DTYPE_POLICIES,
    "half": "fp16",
    "fp32": "off",
    "mixed_bfloat16": "bf16",
    "mixed_float16": "fp16",
    "bf16-mixed": "bf16",
    "16-mixed": "fp16",
}
"""Other names of shipped policies.

They are dtypes, the names of Keras' ``DTypePolicy`` and of Lightning's
``Trainer(precision=)``.
"""

WANTED_DTYPES = ", ".join(DTYPE_POLICIES)

_DATA = ("tuple", "list", "dict")


def named_policy(given: object) -> str | Path | Policy:
    """Return a policy, a path or a name; for a dtype object, the dtype's name.

    Raises:
        PolicyError: It is neither a policy, a text or path, nor a dtype that a shipped
            policy computes in.
    """
    if isinstance(given, (str, Path, Policy)):
        return given
    name = _dtype_name(given)
    if name is None:
        msg = (
            f"policy is a {type(given).__name__}; want a name such as 'bf16', a dtype "
            f"({WANTED_DTYPES}), the path of a .toml file, a jmp string or a "
            f"Policy{_meant(given)}"
        )
        raise PolicyError(msg)
    if name.startswith("float8"):
        msg = (
            f"{name} is no dtype between ops: no kernel takes it without a scale; want "
            "policy fp8 or unit-fp8, or amprewrite.simulate, which round to 8 bits "
            "inside of contractions"
        )
        raise PolicyError(msg)
    if name not in DTYPE_POLICIES:
        msg = (
            f"no shipped policy computes in {name}; want {WANTED_DTYPES}, or a .toml "
            f'file with [dtypes] low = "{name}"'
        )
        raise PolicyError(msg)
    return name


def shipped_name(text: str) -> str:
    """Return the name of the shipped policy that ``text`` is an alias of."""
    return ALIASES.get(text) or DTYPE_POLICIES.get(from_short_name(text), text)


def _dtype_name(given: object) -> str | None:
    """Return the name of a dtype object of torch, numpy, ml_dtypes or JAX."""
    import numpy as np  # noqa: PLC0415  # numpy only for the dtype objects of arrays

    kind = type(given)
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(given).removeprefix("torch.")
    if isinstance(given, np.dtype):
        return given.name
    if not isinstance(given, type):
        return None
    try:
        found = np.dtype(given)
    except TypeError:
        return None
    return None if found.hasobject else found.name


def _meant(given: object) -> str:
    """Return a hint if call arguments were passed in the place of a policy."""
    if isinstance(given, dict):
        return "; did you mean kwargs=? Keyword arguments are given by that name"
    if type(given).__name__ in _DATA or hasattr(given, "shape"):
        tuples = "" if isinstance(given, tuple) else ", as a tuple: args=(x,)"
        return f"; did you mean args=? Call arguments are given by that name{tuples}"
    return ""


# Policies that simulate 8-bit floats: named by their formats, without a file.

PREFIX = "simulate "
"""Beginning of their names: ``simulate e4m3/e5m2``, ``simulate e4m3/e5m2 current``."""

SHORT = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
"""Short names of formats: those of the OCP, not of the FNUZ family."""


def simulated_name(formats: str, scaling: Scaling) -> str:
    """Return the name of a policy that simulates ``formats``."""
    return f"{PREFIX}{formats}" + ("" if scaling == "none" else f" {scaling}")


def simulated_policy(name: str, base: Policy) -> Policy:
    """Return the policy of a name that begins with :data:`PREFIX`.

    Args:
        name: The forward format, a slash and the backward format, then the scaling.
        base: The policy that says which contractions may be low.

    Raises:
        PolicyError: A format or the scaling is unknown.
    """
    words = name.removeprefix(PREFIX).split(" ")
    forward, slash, backward = words[0].partition("/")
    names = [_format(name, part) for part in (forward, backward if slash else forward)]
    scaling: Scaling = "none" if words[1:] in ([], ["none"]) else "current"
    if words[1:] not in ([], ["none"], ["current"]):
        found = " ".join(words[1:])
        msg = f"policy {name!r}: found scaling {found!r}; want none or current"
        raise PolicyError(msg)
    return Policy(name, ops=base.ops, contract=Contract(names[0], names[1], scaling))


def _format(policy: str, name: str) -> str:
    """Return the name of a format; empty for none.

    Raises:
        PolicyError: There is none of that name.
    """
    found = SHORT.get(name, name)
    if found in ("", *EIGHT_BIT_FLOATS):
        return found
    want = ", ".join((*SHORT, *EIGHT_BIT_FLOATS))
    msg = (
        f"policy {policy!r}: found format {name!r}; want two of {want}, with a slash "
        f"between them"
    )
    raise PolicyError(msg)


MAX_BYTES = 2**20
"""Largest size of a policy file: twenty times the largest shipped one."""

MAX_EXTENDS = 32
"""Longest chain of files that extend one another."""

JMP_KEYS = {
    "params": "params",
    "p": "params",
    "compute": "compute",
    "c": "compute",
    "output": "output",
    "o": "output",
}
"""Keys of a jmp policy string, long and short. Source: the jmp library's README."""


def policy_folder() -> Path:
    """Return the folder of the shipped policies.

    A wheel carries them inside the package; an editable install does not see that
    copy and finds them beside the package.
    """
    inside = Path(errors.__file__).parent / "policies"
    return inside if inside.is_dir() else inside.parent.parent / "policies"


def shipped_policies() -> tuple[str, ...]:
    """Return the names of the shipped policies, sorted."""
    return tuple(sorted(path.stem for path in policy_folder().glob("*.toml")))


def load_policy(policy: PolicyLike) -> Policy:
    """Return a policy.

    Args:
        policy: Name of a shipped policy; the dtype to compute in, by name or as an
            object of torch, JAX or numpy (``"bfloat16"`` and ``torch.bfloat16`` stand
            for ``bf16``, float16 for ``fp16``, float32 for ``off``), or the name that
            Keras or Lightning has for it (``"mixed_bfloat16"``, ``"bf16-mixed"``);
            path of a TOML file; a jmp string such as
            ``params=float32,compute=bfloat16,output=float32``; ``simulate`` and two
            8-bit formats, ``simulate e4m3/e5m2``, see :func:`amprewrite.simulate`; or
            a policy itself.

    Raises:
        PolicyError: No such policy (the nearest name is offered), a file that cannot
            be read, or the list of its mistakes.
    """
    named = named_policy(policy)
    if isinstance(named, Policy):
        return named
    text = str(named)
    if text.startswith(PREFIX):
        return simulated_policy(text, shipped_policy("bf16"))
    if "=" in text:
        return _from_jmp(text)
    if text.endswith(".toml") or "/" in text:
        return _from_file(Path(text), ())
    return shipped_policy(shipped_name(text))


PRIMITIVES = frozenset(
    {
        *("and", "call", "cumlogsumexp", "erf_inv", "get", "is_finite", "max", "min"),
        *("reduce_window", "scatter-add", "scatter-max", "scatter-min", "scatter-mul"),
        *("scatter-sub", "select_and_scatter", "select_n", "top_k", "unstack"),
    }
)
"""Primitives of JAX that no policy names, with a name close to that of an op.

A test compares them with the primitives of the installed JAX.
"""


@cache
def known_ops() -> frozenset[str]:
    """Return every op in the table of ops or with a dtype rule.

    The primitives of JAX that look like a misspelt op are included.
    """
    from amprewrite.dtypes.op_rules import OP_RULES  # noqa: PLC0415  # reads a file

    return PRIMITIVES.union(OP_RULES, REGION_BOUNDARIES, op_table().ops)


@cache
def shipped_policy(name: str) -> Policy:
    """Return the shipped policy of a name; its file is read once.

    Raises:
        PolicyError: There is none of that name; the nearest is offered.
    """
    names = shipped_policies()
    if name not in names:
        msg = (
            f"unknown policy {name!r}; want {', '.join(names)}, the path of a .toml "
            f"file, a dtype or a jmp string{near(name, (*names, *ALIASES))}"
        )
        raise PolicyError(msg)
    return replace(_from_file(policy_folder() / f"{name}.toml", ()), name=name)


def _read_toml(path: Path) -> dict[str, object]:
    def refuse(reason: str) -> PolicyError:
        return PolicyError(f"policy {path!s}: {reason}")

    text = read_text(path, MAX_BYTES, "a TOML file", refuse)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        msg = "is nested too deeply to be read; a policy has tables of two levels"
        raise refuse(msg) from error
    except ValueError as error:  # no TOML, or numbers of 5,000 digits
        msg = f"is no TOML: {error}; an op can have only one class"
        raise refuse(msg) from error


def _from_file(path: Path, seen: tuple[Path, ...]) -> Policy:
    if _same_file(path, seen):
        chain = " -> ".join(str(p) for p in (*seen, path))
        msg = f"policy {path}: extends itself: {chain}"
        raise PolicyError(msg)
    if len(seen) >= MAX_EXTENDS:
        msg = (
            f"policy {seen[0]}: extends more than {MAX_EXTENDS} files, one the other: "
            f"{seen[0]} -> {seen[1]} -> ... -> {path}"
        )
        raise PolicyError(msg)
    from amprewrite.policy.schema import heading, read_table  # noqa: PLC0415  # pydantic only if used

    data = _read_toml(path)
    extends, base, refused = data.get("extends"), Policy(name=""), None
    if isinstance(extends, str):
        try:
            base = _extended(extends, path, (*seen, path))
        except PolicyError as error:  # told with the mistakes of this file
            refused = error
    words = (*base.ops, *known_ops()) if "rules" in data else ()
    known = (*base.ops, *(op_table().ops if "groups" in data or refused else ()))
    try:
        file = read_table(data, str(path), known, words)
    except PolicyError as error:
        if refused is None:
            raise
        below = refused.mistakes or (str(refused).removeprefix(f"policy {path}: "),)
        in_base = f"extends {extends}: " if refused.mistakes else ""
        mistakes = [*error.mistakes, *(in_base + mistake for mistake in below)]
        raise PolicyError(heading(f"policy {path}", mistakes), mistakes) from error
    if refused is not None:
        raise refused
    return _merge(base, file, str(path))


def _same_file(path: Path, seen: tuple[Path, ...]) -> bool:
    """Return whether ``path`` is one of ``seen``, by this or by another name."""
    try:
        return any(path.resolve() == before.resolve() for before in seen)
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL
        return False  # reading it raises the right error


def _extended(name: str, path: Path, seen: tuple[Path, ...]) -> Policy:
    sibling = path.parent / name
    if name.endswith(".toml"):
        return _from_file(sibling, seen)
    if name not in shipped_policies():
        names = shipped_policies()
        msg = (
            f"policy {path}: extends: unknown policy {name!r}; want "
            f"{', '.join(names)} or a .toml file beside it{near(name, names)}"
        )
        raise PolicyError(msg)
    return _from_file(policy_folder() / f"{name}.toml", seen)


def _merge(base: Policy, file: "PolicyFile", name: str) -> Policy:
    given = {
        **file.dtypes.model_dump(),
        **file.placement.model_dump(),
        "promotion": file.promotion.system,
        "truncate_complex": file.promotion.truncate_complex,
    }
    contract = file.contract.model_dump()
    return replace(
        base,
        name=name,
        contract=replace(
            base.contract, **{k: v for k, v in contract.items() if v is not None}
        ),
        ops=dict(sorted(_entries(base, file).items())),
        rules=(*(table.rule() for table in file.rules), *base.rules),
        **{key: value for key, value in given.items() if value is not None},
    )


def _entries(base: Policy, file: "PolicyFile") -> dict[str, OpEntry]:
    """Return the entry of each op, from a file and the policy that it extends.

    A line for an op, in the base too, goes before a line for its group.
    """
    entries = dict(base.ops)
    for group, table in file.groups.items():
        entry = OpEntry(table.op_class, table.why, group)
        for op in op_table().members(group):
            if op not in entries or entries[op].group:
                entries[op] = entry
    entries.update({op: OpEntry(t.op_class, t.why) for op, t in file.ops.items()})
    return entries


def _from_jmp(text: str) -> Policy:
    parts: dict[str, str] = {}
    mistakes: list[str] = []
    for item in text.split(","):
        key, _, dtype = (part.strip() for part in item.partition("="))
        dtype = from_short_name(
            {"half": "float16", "full": "float32"}.get(dtype, dtype)
        )
        if key not in JMP_KEYS:
            mistakes.append(f"{key}: unknown key; want params, compute or output")
        elif dtype not in (*DTYPE_POLICIES, "float64"):
            mistakes.append(
                f"{key}: unknown dtype {dtype!r}; want {', '.join(DTYPE_POLICIES)}"
            )
        else:
            parts[JMP_KEYS[key]] = dtype
    compute = parts.get("compute", "float32")
    if not mistakes and compute not in DTYPE_POLICIES:
        mistakes.append(f"compute: found {compute!r}; want {', '.join(DTYPE_POLICIES)}")
    if not mistakes and parts.get("params", "float32") not in ("float32", compute):
        mistakes.append("params: want float32, or the compute dtype")
    if mistakes:
        msg = f"policy {text!r}: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)}"
        raise PolicyError(msg, mistakes)
    output = parts.get("output", "as-traced")
    return replace(shipped_policy(DTYPE_POLICIES[compute]), name=text, output=output)

"""Names of shipped policies: their own, dtypes, and those of Keras and Lightning."""

from pathlib import Path
from typing import Protocol, TypeAlias

from amprewrite.dtypes import from_short_name
from amprewrite.errors import PolicyError
from amprewrite.policy.model import Policy


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

"""Policies that simulate 8-bit floats: named by their formats, without a file."""

from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS
from amprewrite.errors import PolicyError
from amprewrite.policy.contract import Contract, Scaling
from amprewrite.policy.model import Policy

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

"""Literals, bodies and parameters of equations, in every version of JAX."""

from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import jex

Eqn = Any
"""A ``jax.extend.core.JaxprEqn``; its attributes carry no types in JAX."""


def is_literal(atom: object) -> bool:
    """Return whether an operand of an equation is a literal number."""
    return isinstance(atom, jex.Literal)


def bind_params(eqn: Eqn) -> dict[str, Any]:
    """Return the parameters to bind the primitive of ``eqn`` again."""
    return dict(eqn.primitive.get_bind_params(eqn.params))


def file_of(eqn: Eqn) -> str:
    """Return the file of the function that a ``jit`` calls; empty if not known."""
    info = getattr(body_of(eqn).jaxpr, "debug_info", None)
    return getattr(info, "func_filename", None) or ""


def has_bodies(eqn: Eqn) -> bool:
    """Return whether ``eqn`` has a jaxpr among its parameters."""
    return next(iter(jex.jaxprs_in_params(eqn.params)), None) is not None


def body_of(eqn: Eqn) -> Any:
    """Return the only body of ``eqn``; its name differs between versions."""
    params = eqn.params
    return params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]


def scan_counts(eqn: Eqn) -> tuple[int, int]:
    """Return the numbers of constants and carries of a scan; slices follow."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carries, _ = params["ft_in"].unpack()  # jax 0.11
    return len(consts), len(carries)


def is_plain_jit(eqn: Eqn) -> bool:
    """Return whether a ``jit`` only calls: it fixes no sharding and donates nothing."""
    params = eqn.params
    named = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    fixed = (part for key in named for part in params.get(key) or ())
    unfixed = all(part is None or _is_unspecified(part) for part in fixed)
    return unfixed and not any(params.get("donated_invars") or ())


def _is_unspecified(sharding: object) -> bool:
    return type(sharding).__name__ == "UnspecifiedValue"


def sharding_argument(sharding: object) -> Any:
    """Return a sharding for ``jax.jit``: None where it is not specified."""
    return None if _is_unspecified(sharding) else sharding


def manual_axes(eqn: Eqn) -> set[Any]:
    """Return the mesh axes that a ``shard_map`` makes manual."""
    named = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", ()))
    return set(named)

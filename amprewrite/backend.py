"""The backend of ``torch.compile(model, backend="amprewrite")``, an entry point."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from amprewrite.api import TARGETS
from amprewrite.dispatch import planner, prices
from amprewrite.errors import ArgumentError, PolicyError, UnsupportedError
from amprewrite.passes import PLACEMENTS
from amprewrite.policy import Policy, PolicyLike, load_policy

OPTIONS = ("overrides", "placement", "plans", "policy", "target")
"""Names of the options in ``options``."""

CONVERTS = ("device", "dynamic_shapes", "plan", "tolerance", "training")
"""Arguments of ``amprewrite.convert`` that have no meaning here."""


def amprewrite(
    module: Any,
    inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **given: Any,
) -> Callable[..., Any]:
    """Rewrite one dynamo graph; return a callable that runs it.

    Args:
        module: The ``torch.fx.GraphModule`` that dynamo captured.
        inputs: Its example inputs, parameters among them.
        options: ``policy`` (name, path or Policy; default ``bf16``), ``overrides``
            (rules), ``placement``, ``target`` (``eager`` or ``compiled``), ``plans`` (a
            list that every plan is appended to).
        given: The same, as keyword arguments.

    Raises:
        ArgumentError: An option is unknown, or a value of the wrong kind.
        PolicyError: The policy is unknown, or it or an override has mistakes.
        UnsupportedError: The placement or the target does not exist.
    """
    chosen = {**(options or {}), **given}
    _check_options(chosen)
    policy = _policy(chosen.get("policy", "bf16"))
    overrides = chosen.get("overrides", ())
    placement, target = chosen.get("placement", "promote"), chosen.get("target")
    cost = prices(
        module,
        policy,
        target or "eager",
        tuple(inputs),
        weighed=placement == "optimal",
    )
    plan = planner(policy, overrides, placement, cost)
    from amprewrite.frameworks.torch_fx.backend import Backend

    passed = {name: chosen[name] for name in ("plans", "target") if name in chosen}
    return Backend(plan, **passed)(module, inputs)


def _check_options(given: Mapping[str, Any]) -> None:
    """Check the names of the options, and the values that no other module checks.

    Raises:
        ArgumentError: An option is unknown, or a value of the wrong kind.
        UnsupportedError: The placement or the target does not exist.
    """
    for name in given:
        if name not in OPTIONS:
            more = "; amprewrite.convert takes it"
            hint = more if name in CONVERTS else _nearest(name, OPTIONS)
            msg = (
                f"backend amprewrite has no option {name!r}; want "
                f"{', '.join(OPTIONS)}{hint}"
            )
            raise ArgumentError(msg)
    for name, known in (("placement", PLACEMENTS), ("target", TARGETS)):
        if name in given and given[name] not in known:
            msg = (
                f"options[{name!r}] is {given[name]!r}; want {', '.join(known)}"
                f"{_nearest(given[name], known)}"
            )
            raise UnsupportedError(msg)
    if not isinstance(given.get("plans", []), list):
        kind = type(given["plans"]).__name__
        msg = f"options['plans'] is a {kind}; want a list, which plans are appended to"
        raise ArgumentError(msg)


def _nearest(name: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _policy(given: PolicyLike) -> Policy:
    """Return the policy; its errors name the option.

    Raises:
        PolicyError: The policy is unknown, or has mistakes.
    """
    try:
        return load_policy(given)
    except PolicyError as error:
        named = PolicyError(f"options['policy']: {error}")
        named.mistakes = error.mistakes
        raise named from error

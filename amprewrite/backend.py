"""The backend of ``torch.compile(model, backend="amprewrite")``, an entry point."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from amprewrite.dispatch import planner, prices
from amprewrite.errors import ArgumentError
from amprewrite.policy import load_policy

OPTIONS = ("overrides", "placement", "plans", "policy", "target")
"""Names of the options in ``options``."""


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
        ArgumentError: An option is unknown.
        PolicyError: The policy is unknown, or has mistakes.
    """
    chosen = {**(options or {}), **given}
    _check_options(chosen)
    policy = load_policy(chosen.pop("policy", "bf16"))
    overrides = chosen.pop("overrides", ())
    placement, target = chosen.pop("placement", "promote"), chosen.get("target")
    cost = prices(module, policy, target or "eager", tuple(inputs))
    plan = planner(policy, overrides, placement, cost)
    from amprewrite.frameworks.torch_fx.backend import Backend

    return Backend(plan, **chosen)(module, inputs)


def _check_options(given: Mapping[str, Any]) -> None:
    """Check that every given option exists.

    Raises:
        ArgumentError: An option is unknown.
    """
    for name in given:
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            msg = (
                f"backend amprewrite has no option {name!r}; want "
                f"{', '.join(OPTIONS)}{hint}"
            )
            raise ArgumentError(msg)

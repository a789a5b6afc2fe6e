"""What ``torch.compile(model, backend="amprewrite")`` finds by entry point."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from amprewrite.dispatch import planner, prices
from amprewrite.policy import load_policy


def amprewrite(
    module: Any,
    inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **given: Any,
) -> Callable[..., Any]:
    """Rewrite one dynamo graph.

    Args:
        module: The ``torch.fx.GraphModule`` that dynamo captured.
        inputs: Its example inputs, parameters among them.
        options: ``policy`` (name, path or Policy; default ``bf16``), ``overrides``
            (rules), ``placement``, ``target`` (``eager`` or ``compiled``), ``plans`` (a
            list that every plan is appended to).
        given: The same, as keyword arguments.

    Raises:
        PolicyError: No such policy, or a mistake in it.
        TypeError: An option that there is not.
    """
    chosen = {**(options or {}), **given}
    policy = load_policy(chosen.pop("policy", "bf16"))
    overrides = chosen.pop("overrides", ())
    placement, target = chosen.pop("placement", "promote"), chosen.get("target")
    cost = prices(module, policy, target or "eager", tuple(inputs))
    plan = planner(policy, overrides, placement, cost)
    side = import_module("amprewrite.frameworks.torch_fx.backend")
    return side.Backend(plan, **chosen)(module, inputs)

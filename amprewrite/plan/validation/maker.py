"""The policy of a plan, which also plans further programs of the model."""

import hashlib
import json
import weakref
from collections.abc import Mapping
from dataclasses import asdict, replace

from amprewrite.errors import PlanMismatchError, PolicyError, warn
from amprewrite.plan.model import Plan
from amprewrite.policy import Policy, PolicyLike, load_policy
from amprewrite.policy.model import OpEntry

_Known = tuple[weakref.ref[Policy], Mapping[str, OpEntry], str]
"""A policy, a copy of its entries, and its hash."""

_known: dict[int, _Known] = {}  # by identity; a policy that is gone is dropped


def policy_digest(policy: Policy) -> str:
    """Return a hash of a policy that ignores names and explanations.

    It is kept while the policy lives. The entries of ops are compared with a copy,
    because a dictionary may be changed; all other fields are immutable.
    """
    key = id(policy)
    found = _known.get(key)
    if found is None or found[0]() is not policy or found[1] != policy.ops:
        owner = weakref.ref(policy, lambda gone: _forget(key, gone))
        found = _known[key] = owner, dict(policy.ops), _digest(policy)
    return found[2]


def _forget(key: int, gone: "weakref.ref[Policy]") -> None:
    """Drop the hash of a policy, unless another one has its identity by now."""
    found = _known.get(key)
    if found is not None and found[0] is gone:
        del _known[key]


def _digest(policy: Policy) -> str:
    table = asdict(replace(policy, name="", ops={}, rules=()))
    table["ops"] = {name: str(entry.op_class) for name, entry in policy.ops.items()}
    table["rules"] = list(map(str, policy.rules))
    if not policy.contract:  # plans from before it existed have the same digest
        del table["contract"]
    elif policy.contract.kernel == "emulated":
        del table["contract"]["kernel"]
    text = json.dumps(table, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def policy_of(plan: Plan, given: PolicyLike | None) -> Policy:
    """Return the policy that ``plan`` was made by.

    Args:
        plan: The plan.
        given: The policy that the user names beside it; None for none.

    Raises:
        PlanMismatchError: ``given`` is another policy, or the plan's cannot be loaded
            here and none is given.
        PolicyError: ``given`` has mistakes.
    """
    if given is not None:
        found = load_policy(given)
        if plan.policy_digest != policy_digest(found):
            msg = (
                f"plan was made by policy {plan.policy!r} (low {plan.low or 'none'}), "
                f"and policy {found.name!r} (low {found.low or 'none'}) is asked for; "
                f"leave policy= out, or make a new plan with amprewrite.inspect"
            )
            raise PlanMismatchError(msg)
        return found
    try:
        found = load_policy(plan.policy)
    except PolicyError as error:
        reason = str(error).partition("\n")[0]
        msg = (
            f"plan was made by policy {plan.policy!r}, which cannot be loaded here "
            f"({reason}); give that policy as policy="
        )
        raise PlanMismatchError(msg) from error
    if (found.low, found.full) != (plan.low, plan.full):
        msg = (
            f"plan has low {plan.low or 'none'} and full {plan.full}, and its policy "
            f"{plan.policy!r} has low {found.low or 'none'} and full {found.full}; "
            f"make a new plan with amprewrite.inspect"
        )
        raise PlanMismatchError(msg)
    if plan.policy_digest != policy_digest(found):
        warn(
            f"policy {plan.policy!r} has changed since the plan was made by it; other "
            f"programs (another signature, the other mode) are planned by its current "
            f"text"
        )
    return found

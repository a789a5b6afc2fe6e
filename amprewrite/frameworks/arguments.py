"""Checks of call arguments and rules from the user, shared by both frameworks."""

from collections.abc import Mapping
from typing import Any

from amprewrite.errors import ArgumentError


def check_arguments(args: object, kwargs: object) -> None:
    """Check that call arguments, if given, are a tuple and a mapping.

    Args:
        args: Positional call arguments, or None.
        kwargs: Keyword call arguments, or None.

    Raises:
        ArgumentError: They are of another type.
    """
    if args is not None and not isinstance(args, tuple):
        msg = f"args is a {_kind(args)}; want a tuple of the positional call arguments"
        raise ArgumentError(f"{msg}{_instead(args)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        msg = (
            f"kwargs is a {_kind(kwargs)}; want a dict of the keyword call arguments, "
            f"such as kwargs={{'mask': mask}}"
        )
        raise ArgumentError(msg)


def check_overrides(overrides: object) -> None:
    """Check that ``overrides`` is a list of rules.

    Its members are checked where they are read.

    Raises:
        ArgumentError: It is one rule, or no sequence.
    """
    if isinstance(overrides, (list, tuple)):
        return
    msg = (
        f"overrides is a {_kind(overrides)}; want a list of rules: "
        f"overrides=[{{'path': 'decoder.*', 'class': 'deny'}}]"
    )
    raise ArgumentError(msg)


def _kind(given: object) -> str:
    return type(given).__name__


def _instead(args: Any) -> str:
    """Return a hint on how to pass ``args``."""
    if isinstance(args, Mapping):
        return "; keyword arguments go to kwargs="
    if isinstance(args, list):
        return ": args=(x,), or args=tuple(...) of the list"
    return ": args=(x,), with a comma also where there is one"

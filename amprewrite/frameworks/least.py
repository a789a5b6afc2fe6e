"""The least releases of the frameworks, and the refusal of older ones."""

import re
from collections.abc import Mapping
from importlib import import_module

from amprewrite.errors import UnsupportedError

LEAST: Mapping[str, str] = {"torch": "2.11", "jax": "0.10.1"}
"""The least release of each framework, as in pyproject.toml."""


def require(package: str) -> None:
    """Refuse a release of a framework that is older than the least.

    It is asked where the modules for the framework are first imported, not where
    amprewrite is.

    Args:
        package: ``torch`` or ``jax``.

    Raises:
        UnsupportedError: It names the release that is there, and the least.
    """
    release: str = import_module(package).__version__
    least = LEAST[package]
    if _numbers(release) < _numbers(least):
        msg = (
            f"{package} {release} is installed, and amprewrite needs {package} {least} "
            f"or newer: pip install --upgrade '{package}>={least}'"
        )
        raise UnsupportedError(msg)


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, of ``2.13.0+cpu`` for example 2, 13 and 0."""
    return tuple(map(int, re.findall(r"\d+", release.partition("+")[0])[:3]))

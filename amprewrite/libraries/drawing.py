"""The drawing library, matplotlib, if it is installed."""

from typing import Any

from amprewrite.errors import UnsupportedError


def load_matplotlib() -> Any:
    """Return ``matplotlib.figure``, which needs no display.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib import figure  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = (
            "plots are drawn by matplotlib, which is not installed; "
            "pip install 'amprewrite[plot]'"
        )
        raise UnsupportedError(msg) from error
    return figure

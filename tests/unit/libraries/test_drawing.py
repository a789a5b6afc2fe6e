"""The drawing library is asked for by name where it is missing."""

import sys

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.libraries.drawing import load_matplotlib


def test_matplotlib_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'amprewrite\[plot\]'"):
        load_matplotlib()

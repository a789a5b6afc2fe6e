"""Each function of the modules of private names has a test: a new torch breaks it."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx import compat

HERE = Path(__file__).parent
MODULES = sorted(path.stem for path in Path(compat.__path__[0]).glob("[!_]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_every_function_has_a_test(name: str) -> None:
    module = import_module(f"{compat.__name__}.{name}")
    functions = [
        found.__name__
        for found in vars(module).values()
        if inspect.isfunction(found)
        and found.__module__ == module.__name__
        and not found.__name__.startswith("_")
    ]
    text = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py"))
    assert not [f for f in functions if not re.search(rf"\b{f}\b", text)]

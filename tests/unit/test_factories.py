"""The model that a command names is found, or the mistake is said."""

import sys

import pytest

from amprewrite.errors import TargetError
from amprewrite.factories import load_factory

FILE = """
from helper import ARGS

PAIR = ("model", ARGS)
NOT_A_PAIR = 3
THREE = ("model", ARGS, 4)

def build():
    return "model", ARGS, {"scale": 2}

def broken():
    return {}["nothing"]

def wants_more(x):
    return x
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that imports its neighbour, as scripts do."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "helper.py").write_text("ARGS = (1, 2)\n")
    path = tmp_path / "some_model.py"
    path.write_text(FILE)
    yield path
    for name in ("some_model", "helper"):
        sys.modules.pop(name, None)


def test_a_function_is_called(file):
    target = load_factory(f"{file}:build")
    assert (target.model, target.args) == ("model", (1, 2))
    assert target.kwargs == {"scale": 2}


def test_a_variable_is_taken(file):
    target = load_factory(f"{file}:PAIR")
    assert (target.model, target.args, target.kwargs) == ("model", (1, 2), {})


def test_a_module_is_imported_from_the_current_folder(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert load_factory("some_model:PAIR").args == (1, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bild", "has no 'bild'; did you mean 'build'?"),
        ("NOT_A_PAIR", "gives a int; want (model, args) or (model, args, kwargs)"),
        ("THREE", "gives (str, tuple, int); want (model, args)"),
        ("broken", "KeyError: 'nothing' ("),
        ("broken", "some_model.py:12)"),
        ("wants_more", "takes arguments (x); want a function without arguments"),
    ],
)
def test_a_mistake_names_what_was_found(file, name, message):
    with pytest.raises(TargetError) as raised:
        load_factory(f"{file}:{name}")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ("),
        ("def build(:\n", "SyntaxError: invalid syntax"),
        ("def build():\n    return build()\n", "RecursionError: maximum recursion"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named"),
    ],
)
def test_code_that_fails_shows_its_own_error(file, code, message):
    file.write_text(code)
    with pytest.raises(TargetError) as raised:
        load_factory(f"{file}:build")
    assert message in str(raised.value)
    assert "some_model.py" in str(raised.value)


def test_an_error_inside_torch_names_the_users_line(file):
    pytest.importorskip("torch")
    file.write_text(
        "import torch\ndef build():\n    torch.nn.Linear(2, 2)(torch.ones(3))"
    )
    with pytest.raises(TargetError, match=r"RuntimeError: .*some_model\.py:3\)"):
        load_factory(f"{file}:build")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("model.py", "want FILE.py:name or package.module:name"),
        ("model.py:", "want FILE.py:name or package.module:name"),
        (":build", "want FILE.py:name or package.module:name"),
        ("no_such_file.py:build", "no_such_file.py: no such file"),
        ("no_such_module:build", "ModuleNotFoundError: No module named"),
    ],
)
def test_a_target_that_is_not_there(target, message):
    with pytest.raises(TargetError) as raised:
        load_factory(target)
    assert message in str(raised.value)

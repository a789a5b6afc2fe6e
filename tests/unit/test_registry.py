"""Which framework takes a model."""

import subprocess
import sys

import pytest

from amprewrite import registry
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Framework, Stepper

ASKED = [
    name for name in {**vars(Stepper), **vars(Framework)} if not name.startswith("_")
]


def test_a_module_of_torch_is_torch():
    torch = pytest.importorskip("torch")
    found = registry.framework_of(torch.nn.Linear(2, 2))
    assert found is registry.torch_fx()


def test_a_function_is_of_jax():
    pytest.importorskip("jax")
    assert registry.framework_of(lambda x: x) is registry.jaxpr()


def test_a_function_that_torch_compiled_is_torch():
    torch = pytest.importorskip("torch")
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    assert registry.framework_of_result(compiled) is registry.torch_fx()
    assert registry.framework_of_result(torch.nn.ReLU()) is registry.torch_fx()


@pytest.mark.parametrize("name", registry.TAKES)
def test_a_framework_has_all_that_is_asked_of_it(name):
    pytest.importorskip(name)
    framework = registry.TAKES[name][1]()
    assert len(ASKED) > 10
    for asked in ASKED:
        assert callable(getattr(framework, asked)), asked


@pytest.mark.parametrize("model", [3, None, "model", int])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(
        UnsupportedError, match=f"cannot convert a {type(model).__name__};"
    ):
        registry.framework_of(model)


def test_what_is_installed_is_found_without_a_model(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    assert registry.installed() == {}
    pytest.importorskip("torch")
    monkeypatch.setattr(registry, "find_spec", lambda name: name == "torch" or None)
    assert registry.installed() == {"torch": registry.torch_fx()}


def test_no_framework_is_loaded_before_a_model_of_it_is_there():
    code = (
        "import sys, amprewrite.registry\n"
        "print([m for m in ('torch', 'jax') if m in sys.modules])"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert found.strip() == "[]"

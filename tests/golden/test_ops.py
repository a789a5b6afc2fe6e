"""The class of every op under every shipped policy, and what passes know of ops.

``python -m pytest tests/golden --update-goldens`` records them anew: read the diff.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import op_facts

HERE = Path(__file__).parent / "ops"

Compare = Callable[[str, str], None]


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """Return a function that compares a text with the recorded one."""

    def compared(name: str, found: str) -> None:
        path = HERE / f"{name}.txt"
        if request.config.getoption("--update-goldens", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(found, "utf-8")
        assert path.exists(), f"record {path.name} with --update-goldens"
        assert found == path.read_text("utf-8")

    return compared


def test_every_op_has_its_class(compare: Compare) -> None:
    compare("classes", op_facts.classes_text())


def test_every_reason_is_given(compare: Compare) -> None:
    compare("reasons", op_facts.reasons_text())


def test_every_op_has_its_traits(compare: Compare) -> None:
    compare("traits", op_facts.traits_text(op_facts.traits()))


def test_every_op_of_torch_has_its_traits(compare: Compare) -> None:
    pytest.importorskip("torch")
    compare("torch_traits", op_facts.traits_text(op_facts.torch_traits()))


def test_every_spelling_of_torch_is_an_op_with_its_classes(compare: Compare) -> None:
    pytest.importorskip("torch")
    names = op_facts.aten_names()
    compare("aten_names", op_facts.names_text(names))
    for name, op in names.items():
        spelled = op_facts.an_op(op, f"aten.{name}.default")
        known = op_facts.an_op(op)
        assert op_facts.classes_of(spelled) == op_facts.classes_of(known), name


def test_every_spelling_of_jax_is_an_op_with_its_classes(compare: Compare) -> None:
    pytest.importorskip("jax")
    names = op_facts.jax_names()
    compare("jax_names", op_facts.names_text(names))
    for name, op in names.items():
        spelled, known = op_facts.an_op(op, name), op_facts.an_op(op)
        assert op_facts.classes_of(spelled) == op_facts.classes_of(known), name

"""The page of the architecture shows the import graph; names in pages exist."""

import re
from pkgutil import resolve_name

import networkx as nx
import pytest

from tests.docs.links import pages
from tools.import_picture import DRAWN, PACKAGE, PAGE, drawing, imports, redrawn

NAME = re.compile(r"`(amprewrite(?:\.\w+)+)(?:\(\))?`")
"""A module, or what is in one, as pages name it."""

TEXT = PAGE.read_text(encoding="utf-8")
PARTS = ("passes", "frameworks.torch_fx", "frameworks.jaxpr")


def names_of(text):
    """Dotted names in a page, but for files of the package such as ``x.md``."""
    return sorted(set(NAME.findall(text)))


def test_the_pictures_are_up_to_date():
    assert redrawn(TEXT) == TEXT, "run: python -m tools.import_picture"


def test_what_is_drawn():
    drawn = {found["package"] for found in DRAWN.finditer(TEXT)}
    assert drawn == {PACKAGE, *(f"{PACKAGE}.{part}" for part in PARTS)}


def test_a_picture_has_every_import_directly_or_by_others():
    graph = imports(f"{PACKAGE}.passes")
    shown = nx.DiGraph(re.findall(r"  (\w+) --> (\w+)", drawing(f"{PACKAGE}.passes")))
    assert graph.has_edge("pipeline", "analysis")
    assert nx.transitive_closure(shown).edges == nx.transitive_closure(graph).edges
    assert ("pipeline", "analysis") not in shown.edges


def test_a_picture_that_is_wrong_is_drawn_again():
    right = redrawn(TEXT)
    wrong = right.replace("  placement --> cost\n", "  cost --> placement\n")
    assert wrong != right
    assert redrawn(wrong) == right


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_names_of_the_code_exist(path):
    names = names_of(path.read_text(encoding="utf-8"))
    if names:
        for library in ("torch", "jax", "flax", "equinox"):
            pytest.importorskip(library)
    for name in names:
        assert resolve_name(name)


def test_the_walk_names_the_code_of_both_frameworks():
    names = names_of(TEXT)
    for part in (*PARTS, "policy"):
        assert any(name.startswith(f"{PACKAGE}.{part}.") for name in names)


def test_names_are_found():
    assert names_of("`amprewrite.convert()` and `amprewrite.ir.graph.Op`") == [
        "amprewrite.convert",
        "amprewrite.ir.graph.Op",
    ]
    with pytest.raises(AttributeError):
        resolve_name("amprewrite.ir.graph.Nothing")


def test_every_part_of_a_picture_says_what_it_is():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", TEXT, flags=re.MULTILINE)
    assert {"passes", "pipeline", "rewrite", "interpret"} <= {name for name, _ in rows}
    assert all(words.strip() for _, words in rows)

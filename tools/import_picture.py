"""Draw the import graph as Mermaid text in docs/architecture.md.

    python -m tools.import_picture

A package is one node for all its modules. An arrow points from the package that imports
to the one that is imported; where other arrows lead there too, it is left out, so that
the picture is the transitive reduction of the import graph. Imports for the type
checker alone do not count.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "amprewrite"
START = "<!-- drawn by python -m tools.import_picture: {package} -->\n"
END = "<!-- /drawn -->"
DRAWN = re.compile(
    re.escape(START).replace(re.escape("{package}"), r"(?P<package>[\w.]+)")
    + ".*?"
    + re.escape(END),
    re.DOTALL,
)


def imports(package: str) -> "nx.DiGraph[str]":
    """Return the import graph of the children of ``package``, by their names.

    Args:
        package: Dotted name of a package in :data:`PACKAGE`.
    """
    modules = grimp.build_graph(
        PACKAGE, cache_dir=None, exclude_type_checking_imports=True
    )
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(_children(package, modules.modules))
    for module in modules.modules:
        importer = _child(package, module)
        for found in modules.find_modules_directly_imported_by(module):
            imported = _child(package, found)
            if importer and imported and importer != imported:
                graph.add_edge(importer, imported)
    return graph


def _children(package: str, modules: Iterable[str]) -> set[str]:
    return {child for module in modules if (child := _child(package, module))}


def _child(package: str, module: str) -> str:
    """Return the child of ``package`` that ``module`` is or is in; empty if none."""
    inside = module.removeprefix(f"{package}.")
    child = inside.partition(".")[0]
    return "" if inside == module or child.startswith("__") else child


def drawing(package: str) -> str:
    """Return the Mermaid text of ``package`` and what each of its children is."""
    graph = imports(package)
    arrows = nx.transitive_reduction(graph).edges
    ranks = {name: rank for rank, name in enumerate(_from_top(graph))}
    order = sorted(arrows, key=lambda arrow: (ranks[arrow[0]], ranks[arrow[1]]))
    lines = [
        "```mermaid",
        "flowchart TD",
        *(f"  {importer} --> {imported}" for importer, imported in order),
        *(f"  {name}" for name in sorted(nx.isolates(graph))),
        "```",
        "",
        f"| `{package}.` | |",
        "|---|---|",
        *(f"| `{name}` | {_summary(f'{package}.{name}')} |" for name in ranks),
    ]
    return "\n".join(lines) + "\n"


def _from_top(graph: "nx.DiGraph[str]") -> Iterable[str]:
    """Return the nodes in an order in which importers come first."""
    return nx.lexicographical_topological_sort(graph)


def _summary(module: str) -> str:
    """Return the first paragraph of a module's docstring, on one line."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.partition("\n\n")[0].split()).replace("|", r"\|")
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", line.replace("``", "`"))


def redrawn(page: str) -> str:
    """Return ``page`` with every marked picture drawn again."""

    def draw(found: re.Match[str]) -> str:
        package = found["package"]
        return START.format(package=package) + drawing(package) + END

    return DRAWN.sub(draw, page)


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

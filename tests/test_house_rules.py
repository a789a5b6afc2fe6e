"""The rules of the house that no linter knows."""

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "amprewrite"
UNIT = ROOT / "tests" / "unit"

MAX_INIT_LINES = 40

TEXT_SUFFIXES = {".cfg", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
TEXT_FOLDERS = [
    *("amprewrite", "benchmarks", "docs", "examples", "policies", "tests", "tools"),
    ".github",
]
BEGINNINGS = re.compile(
    r"(?:And|But|Gives|Grows|How|If|Its?|Keeps|Nothing|Runs|So|Stands|Takes|That|Theirs?"
    r"|There|These|They|This|Those|We|When|Where|Which|Why|You)\b"
)
"""Beginnings of a sentence or a clause, but of no verb phrase and no noun phrase."""
CODE_SPAN = re.compile(r"`+[^`]*`+")

INSIDE = re.compile(r"\]\(([^)\s]+)\)")
"""The target of a link in a page."""
MACHINE_PATH = re.compile(r"(?<![\w./~*-])/(?:home|mnt|root|tmp|work)(?![\w-])")


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def short(path):
    return path.relative_to(ROOT).as_posix()


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def text_files():
    """Every text file of the project: some folders whole, and the root's own files."""
    inside = [f for folder in TEXT_FOLDERS for f in (ROOT / folder).rglob("*")]
    files = [f for f in (*inside, *ROOT.iterdir()) if f.suffix in TEXT_SUFFIXES]
    return sorted([*files, ROOT / ".ci" / "run"])


def machine_paths(text):
    """Line numbers of the absolute paths that only exist on somebody's machine."""
    return [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]


def prints(source):
    """Line numbers of the calls of ``print``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


def is_plain(line):
    """Whether a docstring's first line is a verb phrase or a noun phrase."""
    prose = CODE_SPAN.sub("X", line)
    return line.endswith(".") and prose[0].isupper() and not BEGINNINGS.match(prose)


def first_lines(source):
    """Line number and first line of each docstring; below a constant, too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip().split("\n")[0]
            case _:
                pass


WORDS = {"rule", "why", "warnings", "captured"}
"""Fields of decisions, casts and plans that are for people: no code decides by them."""

ANSWERS = {"count", "endswith", "find", "index", "match", "search", "startswith"}


def branches_on_words(source):
    """Line numbers where a text for people is compared or looked into.

    Whether there is any is no look at what it says.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            read = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            read = [node.subject]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            read = [node.func.value] * (node.func.attr in ANSWERS)
        else:
            continue
        words = [x for x in read if isinstance(x, ast.Attribute) and x.attr in WORDS]
        found.update(node.lineno for _ in words)
    return sorted(found)


def warnings_given(source):
    """Line numbers of the calls of ``warnings.warn``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]


def unsorted_keys(table):
    """The first key that belongs before the one above it; None if all are sorted."""
    return next((b for a, b in pairwise(table) if b < a), None)


def test_packages_of_names_are_short():
    inits = {path: lines_of(path) for path in modules() if path.name == "__init__.py"}
    assert not {short(path): n for path, n in inits.items() if n > MAX_INIT_LINES}


@pytest.mark.parametrize("name", ["frameworks/torch_fx", "frameworks/jaxpr", "passes"])
def test_no_two_modules_of_a_part_have_one_name(name):
    stems = [p.stem for p in (PACKAGE / name).rglob("[!_]*.py")]
    assert sorted(stems) == sorted(set(stems))


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in modules()}
    assert not [short(f) for f in folders if not (f / "__init__.py").exists()]


def test_every_package_has_a_folder_of_tests():
    packages = {path.parent for path in modules() if path.name != "__init__.py"}
    names = [path.relative_to(PACKAGE) for path in packages]
    assert not [str(name) for name in names if not any((UNIT / name).glob("test_*.py"))]


def test_every_folder_of_unit_tests_is_one_of_a_package():
    folders = {path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    assert not [str(f) for f in folders if not (PACKAGE / f).is_dir()]


@pytest.mark.parametrize("name", ["benchmarks", "docs", "examples"])
def test_every_file_has_a_line_in_the_index_page_of_its_folder(name):
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    inside = [link for link in INSIDE.findall(text) if not link.startswith("..")]
    files = (path for path in (ROOT / name).rglob("*") if path.is_file())
    there = {path.relative_to(ROOT / name).as_posix() for path in files}
    cached = {path for path in there if "__pycache__" in path}
    assert sorted(inside) == sorted(there - cached - {"README.md"})


@pytest.mark.parametrize("path", sorted((ROOT / "policies").glob("*.toml")), ids=short)
def test_ops_of_a_policy_are_sorted(path):
    ops = tomllib.loads(path.read_text(encoding="utf-8")).get("ops", {})
    assert unsorted_keys(ops) is None


def test_no_file_names_a_path_of_somebodys_machine():
    found = {
        short(path): numbers
        for path in text_files()
        if (numbers := machine_paths(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_only_the_command_line_prints():
    found = {
        short(path): numbers
        for path in modules()
        if path != PACKAGE / "cli" / "show.py"
        and (numbers := prints(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_no_code_compares_the_words_of_a_plan():
    """What decides is a field of its own: ``Decision.reason``, ``derivative``, ..."""
    found = {
        short(path): numbers
        for path in modules()
        if (numbers := branches_on_words(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_one_function_warns_and_points_to_the_users_line():
    found = {
        short(path): numbers
        for path in modules()
        if path != PACKAGE / "errors.py"
        and (numbers := warnings_given(path.read_text(encoding="utf-8")))
    }
    assert not found


def unplain_lines(path):
    """The first lines of docstrings that are no plain phrases."""
    found = first_lines(path.read_text(encoding="utf-8"))
    return [f"{number}: {line}" for number, line in sorted(found) if not is_plain(line)]


def test_first_lines_of_docstrings_are_plain():
    """A verb or noun phrase in the field's words; see docs/words.md for ours."""
    found = {short(path): lines for path in modules() if (lines := unplain_lines(path))}
    assert not found


def test_the_rules_can_fail():
    assert is_plain("Return the minimum cut.")
    assert is_plain("``It`` of the cut.")
    for line in (
        *("It cuts.", "How a cut is made.", "return the cut.", "Return the cut"),
        *("Those of the cut.", "Where the cut is.", "Stands for a cut."),
    ):
        assert not is_plain(line)
    source = """'''Module.'''\nA = 1\n'''A.\n\nMore.'''\nclass B:\n  '''B.'''\n"""
    assert list(first_lines(source)) == [(1, "Module."), (3, "A."), (7, "B.")]
    assert warnings_given("import warnings\nwarnings.warn('x')\nwarn('y')\n") == [2]
    slash = "/"
    assert machine_paths(f"a\nopen('{slash}tmp/x')\n{slash}work\n") == [2, 3]
    assert not machine_paths("src/tmp/x ./work ~/root https://example.org/home")
    assert prints("x = 1\nif x:\n    print(x)\n") == [3]
    assert not prints("report.print(x)\n'print(x)'\n")
    assert branches_on_words("if d.rule == 'x':\n    y\n'x' in found.why") == [1, 3]
    assert branches_on_words("d.why.startswith('x')\nmatch d.rule:\n  case _: 0") == [
        1,
        2,
    ]
    assert not branches_on_words("why = d.why or f'{d.rule}'\nif d.why:\n    y")
    assert unsorted_keys({"a": 1, "c": 2, "b": 3}) == "b"
    assert unsorted_keys({"a": 1, "b": 2}) is None

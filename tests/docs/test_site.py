"""The site builds without a warning or the network, and has all public names."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import amprewrite
from amprewrite import errors
from tests.docs.links import ROOT
from tools import (
    command_page,
    plan_picture,
    policy_page,
    site_diagrams,
    site_hooks,
    site_roles,
)

for library in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(library)

PACKAGES = (
    *("amprewrite", "amprewrite.plan", "amprewrite.policy", "amprewrite.dtypes"),
    *("amprewrite.training.torch", "amprewrite.training.jax"),
    *("amprewrite.verify", "amprewrite.compat.mpx", "amprewrite.compat.jmp"),
    *("amprewrite.unit_scaling", "amprewrite.unit_scaling.functional"),
    "amprewrite.unit_scaling.functional_jax",
)
"""Packages with public names in ``__all__``."""

ASSET = re.compile(
    r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?((?:https?:)?//\S+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the site, built once."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=ROOT, env=environ, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def texts(folder):
    return {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}


def public_names():
    """The dotted names of each public object, that of its module among them."""
    for name in PACKAGES:
        if name.rpartition(".")[2] in {"torch", "functional"}:
            pytest.importorskip("torch")
        elif name.startswith(("amprewrite.training", "amprewrite.compat")) or (
            name.endswith("functional_jax")
        ):
            pytest.importorskip("jax")
    found = [
        (f"{package}.{name}", getattr(module, name))
        for package in PACKAGES
        for module in [importlib.import_module(package)]
        for name in module.__all__
    ]
    found += [
        (f"amprewrite.errors.{name}", error)
        for name, error in vars(errors).items()
        if isinstance(error, type)
        and error.__module__ == errors.__name__
        and not name.startswith("_")
    ]
    names = {}
    for name, value in found:
        own = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
        names.setdefault(id(value), set()).update({name, ".".join(own)})
    return names.values()


@pytest.mark.slow
def test_every_public_name_has_its_entry(site):
    shown = set(re.findall(r'id="([\w.]+)"', "".join(texts(site).values())))
    missing = [sorted(names) for names in public_names() if not names & shown]
    shown_otherwise = {"amprewrite.__version__", "amprewrite.errors"}
    found = {name for names in missing for name in names} - {"."}
    assert found == shown_otherwise, "give it a line in a page of docs/reference"


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    found = {path.name: ASSET.findall(text) for path, text in texts(site).items()}
    assert len(found) > 10
    assert not {name: links for name, links in found.items() if links}


@pytest.mark.slow
def test_flowcharts_are_pictures(site):
    page = (site / "architecture.html").read_text(encoding="utf-8")
    assert page.count('role="img"') > 3
    assert "flowchart" not in page


@pytest.mark.slow
def test_no_role_is_left_in_the_text(site):
    assert not [p.name for p, t in texts(site).items() if re.search(r":\w+:<code>", t)]


def test_assets_of_elsewhere_are_found():
    assert ASSET.findall('<script src="https://a.b/c.js"></script>')
    assert ASSET.findall('<link rel=x href="//a.b/c.css">')
    assert not ASSET.findall('<script src="c.js"></script><a href="https://a.b">')


@pytest.mark.parametrize(
    "tool", [policy_page, command_page, plan_picture], ids=["policy", "command", "plan"]
)
def test_a_page_that_is_written_by_a_tool_is_up_to_date(tool):
    if tool is plan_picture:
        pytest.importorskip("torch")
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), (
        f"run: python -m {tool.__name__}"
    )


def test_links_out_of_the_site_become_names():
    def named(text):
        return site_hooks.named(text, Path("howto"))

    assert named("[a](b.md) [c](../d.md#e) [f](https://g.h)") == (
        "[a](b.md) [c](../d.md#e) [f](https://g.h)"
    )
    assert named("[examples/x](../../examples/x)") == "`examples/x`"
    assert named("[ops.toml](../../a/ops.toml)") == "`a/ops.toml`"
    assert named("[the table](../../a/ops.toml#b)") == "the table (`a/ops.toml`)"


def test_blocks_of_both_frameworks_become_tabs():
    torch, jax = "```python\nx\n```\n```text\ny\n```\n", "```python\nz\n```\n"
    found = site_hooks.tabbed(f"a\n\nIn torch:\n\n{torch}\nIn JAX:\n\n{jax}\nb\n")
    start, tabs = found.split('=== "torch"')
    assert (start, found.count("```")) == ("a\n\n", 6)
    assert '=== "JAX"\n\n    ```python\n    z\n    ```\n' in tabs
    assert site_hooks.tabbed("In torch:\n\n```python\n```\n").startswith("In torch")


def test_a_picture_shows_each_op_and_each_cast():
    pytest.importorskip("torch")
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8)).eval()
    plan = amprewrite.inspect(model, args=(torch.ones(2, 4),))
    shown = ET.fromstring(plan_picture.picture(plan))
    texts = [element.text for element in shown.iter() if element.tag.endswith("text")]
    assert texts[:-1] == [
        *("bf16", "f32", "input", "output"),
        *("linear", "allow, bf16", "layer_norm", "deny, f32"),
    ]


def test_a_flowchart_has_its_boxes_and_arrows_downwards():
    text = "a\n```mermaid\nflowchart TD\n  top --> low\n  mid --> low\n  alone\n```\n"
    graph = site_diagrams.graph_of(text.partition("TD\n")[2].partition("```")[0])
    assert site_diagrams.rows_of(graph) == [["alone", "mid", "top"], ["low"]]
    shown = site_diagrams.drawn(text)
    assert shown.startswith("a\n<svg ")
    assert [shown.count(f">{name}</text>") for name in graph] == [1, 1, 1, 1]
    assert shown.count('fill="currentColor"/>') == 2  # the heads of arrows


def test_roles_become_code():
    assert site_roles.plain("as :func:`convert` and :class:`~a.b.C`") == (
        "as `convert` and `a.b.C`"
    )

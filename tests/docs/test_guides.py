"""Every Python block of the guides runs and prints what the guide shows."""

import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of, matches

FOLDER = Path(__file__).parents[2] / "docs"
GUIDES = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path
    for path in FOLDER.rglob("*.md")
}
NEEDS = {
    "architecture": ("torch", "jax"),
    "distributed": ("torch", "jax"),
    "dtypes": ("torch", "flax"),
    "jax": ("jax",),
    "placement": ("torch",),
    "training_jax": ("jax", "equinox", "flax", "optax"),
    "training_torch": ("torch",),
}
"""What the blocks of a guide import."""


def test_there_are_guides():
    assert "jax" in GUIDES


@pytest.mark.parametrize("name", sorted(GUIDES))
def test_no_output_stands_apart_from_its_block(name):
    assert "```\n\n```text" not in GUIDES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(GUIDES))
def test_python_blocks_run_in_order(name, tmp_path, monkeypatch, capsys):
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)
    if torch := sys.modules.get("torch"):  # loaded here, it is not seeded yet
        torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks_of(GUIDES[name].read_text(encoding="utf-8")):
        if block.language == "python":
            where = f"docs/{name}.md:{block.line}"
            exec(compile(block.text, where, "exec"), names)
            printed = capsys.readouterr().out
            if block.output is not None:
                assert matches(block.output, printed), f"{where}:\n{printed}"

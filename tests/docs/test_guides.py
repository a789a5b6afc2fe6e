"""Every block of the guides runs and prints what the guide shows."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.command_line import done
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
    "autocast_inside": ("torch",),
    "converted_modules": ("torch",),
    "demand": ("torch",),
    "migrate": ("torch", "jax"),
    "placement": ("torch",),
    "promote_words": ("torch",),
    "tutorial": ("torch", "jax"),
    "training_jax": ("jax", "equinox", "flax", "optax"),
    "training_torch": ("torch",),
    "unit_scaling": ("torch", "jax", "matplotlib"),
    "howto/call_arguments": ("torch", "jax"),
    "howto/export": ("torch", "jax", "onnxscript", "onnxruntime", "safetensors"),
    "howto/find_the_layer": ("torch",),
    "howto/generate": ("torch", "transformers"),
    "howto/jax_libraries": ("jax", "equinox", "optax"),
    "howto/lightning": ("torch", "lightning"),
    "howto/other_libraries": ("torch",),
    "howto/jax_objects": ("jax", "equinox", "flax"),
    "howto/keep_full": ("torch",),
    "howto/numbers": ("torch", "jax"),
    "howto/other_shapes": ("torch",),
    "howto/plans": ("torch",),
    "howto/torch_compile": ("torch",),
    "howto/transformers": ("torch", "transformers", "tokenizers", "accelerate", "peft"),
    "howto/train_fp16": ("torch", "jax", "optax"),
    "howto/read_the_page": ("torch",),
    "howto/verify_report": ("torch",),
    "howto/what_is_lowered": ("torch", "jax"),
    "howto/write_a_policy": ("torch",),
    "reference/plan_file": ("torch",),
}
"""What the blocks of a guide import."""


def test_there_are_guides():
    assert "jax" in GUIDES


@pytest.mark.parametrize("name", sorted(GUIDES))
def test_no_output_stands_apart_from_its_block(name):
    assert "```\n\n```text" not in GUIDES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(GUIDES))
def test_blocks_run_in_order(name, tmp_path, monkeypatch, capsys):
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)
    if torch := sys.modules.get("torch"):  # loaded here, it is not seeded yet
        torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    # Without a name, classes are of builtins, where their annotations are looked up.
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks_of(GUIDES[name].read_text(encoding="utf-8")):
        where = f"docs/{name}.md:{block.line}"
        if block.language == "toml":  # its first line names the file
            Path(block.text.splitlines()[0].removeprefix("# ")).write_text(block.text)
        elif block.language == "shell":
            commands = [shlex.split(line)[1:] for line in block.text.splitlines()]
            printed = "".join(done(*command) for command in commands)
            assert matches(block.output, printed), f"{where}:\n{printed}"
        elif block.language == "python":
            exec(compile(block.text, where, "exec"), names)
            printed = capsys.readouterr().out
            if block.output is not None:
                assert matches(block.output, printed), f"{where}:\n{printed}"

"""Every example runs and says what it is about."""

import runpy
from pathlib import Path

import pytest

from amprewrite.policy import load_policy

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {path.stem: path for path in FOLDER.glob("*.py")}


def output_of(name, capsys):
    pytest.importorskip("torch")
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    return capsys.readouterr().out


def test_convert_mlp(capsys):
    text = output_of("convert_mlp", capsys)
    assert "rewritten 2 of 4 ops to bfloat16" in text
    assert "because  layer_norm" in text


def test_custom_policy(capsys):
    text = output_of("custom_policy", capsys)
    assert "gelu: promote bfloat16 -> deny float32" in text
    assert "why      the scores are compared with each other" in text
    assert "nothing was lowered" in text


@pytest.mark.slow
def test_train_cnn(capsys):
    pytest.importorskip("sklearn")
    text = output_of("train_cnn", capsys)
    full, low = (
        float(line.split()[-1]) for line in text.splitlines() if "test" in line
    )
    assert full > 0.95
    assert low > full - 0.02


def test_policies_in_the_folder_are_good():
    assert [load_policy(path).name for path in FOLDER.glob("*.toml")]


def test_every_example_has_its_test():
    assert {f"test_{name}" for name in EXAMPLES} <= set(globals())

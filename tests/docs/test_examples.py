"""Every example runs and says what it is about."""

import re
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


def test_export_onnx(capsys):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    text = output_of("export_onnx", capsys)
    ours, runtimes = (float(x) for x in re.findall(r"error .*: ([\d.e-]+)", text))
    assert 1e-5 < ours < 1e-3
    assert 1e-5 < runtimes < 2 * ours


@pytest.mark.slow
def test_train_cnn(capsys):
    pytest.importorskip("sklearn")
    text = output_of("train_cnn", capsys)
    full, low = (
        float(line.split()[-1]) for line in text.splitlines() if "test" in line
    )
    assert full > 0.95
    assert low > full - 0.02


def test_master_copies(capsys, monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["master_copies", "--steps", "100"])
    text = output_of("master_copies", capsys)
    full, masters, stored = (float(x) for x in re.findall(r" to ([\d.]+)", text))
    assert masters == pytest.approx(full, abs=0.01)
    assert stored > full + 0.1
    assert all(int(share) > 50 for share in re.findall(r"(\d+)% of the updates", text))
    assert (tmp_path / "master_copies.svg").stat().st_size > 1000


@pytest.mark.slow
def test_loss_scaling_lstm(capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["loss_scaling_lstm", "--steps", "15"])
    text = output_of("loss_scaling_lstm", capsys)
    lost = [float(x) for x in re.findall(r"([\d.]+)% become zero", text)]
    assert lost[0] > 30
    assert lost[1] < 1
    full, without, scaled = (float(x) for x in re.findall(r" to ([\d.]+)\n", text))
    # The mean over the last steps; both begin at the same loss.
    assert scaled == pytest.approx(full, abs=0.02)
    assert without > full + 0.1
    for name in ("loss_scaling.svg", "exponents.svg"):
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.slow
def test_unit_scaled_gpt(capsys, monkeypatch):
    options = ["--steps", "40", "--layers", "1"]
    monkeypatch.setattr("sys.argv", ["unit_scaled_gpt", *options])
    text = output_of("unit_scaled_gpt", capsys)
    assert "8 bits: 4 contractions" in text
    found = re.findall(r"([\w-]+): loss ([\d.]+) to ([\d.]+)", text)
    assert [name for name, *_ in found] == ["float32", "unit-fp8"]
    (first, full), (_, low) = ((float(a), float(b)) for _, a, b in found)
    assert full < first - 1.5
    assert low == pytest.approx(full, abs=0.05)


def jax_output_of(name, capsys, *libraries):
    """What an example prints, and the last loss in float32 and in bf16."""
    for library in ("jax", "optax", *libraries):
        pytest.importorskip(library)
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    text = capsys.readouterr().out
    found = re.findall(r"(\w+): loss ([\d.]+) to ([\d.]+)", text)
    assert [name for name, *_ in found] == ["float32", "bf16"]
    losses = {name: (float(first), float(last)) for name, first, last in found}
    (first, full), (_, low) = losses.values()
    assert max(full, low) < first / 3
    assert low == pytest.approx(full, rel=0.25, abs=0.02)
    return text


@pytest.mark.slow
def test_jax_equinox_vit(capsys):
    text = jax_output_of("jax_equinox_vit", capsys, "equinox", "sklearn")
    full, low = (float(found) for found in re.findall(r"accuracy ([\d.]+)", text))
    assert low > full - 0.03


@pytest.mark.slow
def test_jax_linen_transformer(capsys):
    text = jax_output_of("jax_linen_transformer", capsys, "flax")
    assert "attention.query runs in bfloat16" in text
    assert "head runs in float32" in text


@pytest.mark.slow
def test_jax_nnx_convnet(capsys):
    text = jax_output_of("jax_nnx_convnet", capsys, "flax", "sklearn")
    full, low = (float(found) for found in re.findall(r"accuracy ([\d.]+)", text))
    assert low > full - 0.05
    assert "{'float32'}" in text


@pytest.mark.slow
def test_jax_scan_rnn(capsys):
    text = jax_output_of("jax_scan_rnn", capsys)
    assert text.splitlines()[-1].count("bfloat16") == 3


def test_policies_in_the_folder_are_good():
    assert [load_policy(path).name for path in FOLDER.glob("*.toml")]


def test_every_example_has_its_test():
    assert {f"test_{name}" for name in EXAMPLES} <= set(globals())


def test_every_example_for_several_processes_has_its_test():
    tests = FOLDER.parent / "tests" / "integration"
    text = "".join(path.read_text() for path in tests.glob("test_distributed_*.py"))
    names = [path.name for path in (FOLDER / "distributed").glob("*.py")]
    assert names
    assert all(f'"distributed" / "{name}"' in text for name in names)

"""The examples of whole training runs learn, and to the losses of float32."""

import re
import runpy
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "training"
SHARED = {"curves", "digits"}
NEEDS = {
    "char_gpt_torch": ("torch",),
    "digits_cnn_torch": ("torch", "sklearn"),
    "digits_vit_equinox": ("jax", "optax", "sklearn", "equinox"),
    "digits_vit_linen": ("jax", "optax", "sklearn", "flax"),
    "digits_vit_nnx": ("jax", "optax", "sklearn", "flax"),
}
STEPS = 60


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*NEEDS, *SHARED}


def test_a_missing_matplotlib_is_said_before_any_training(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    curves = import_module("curves")
    monkeypatch.setattr(curves, "find_spec", lambda _: None)
    monkeypatch.setattr("sys.argv", ["example"])
    with pytest.raises(SystemExit) as stopped:
        curves.main(lambda *_: pytest.fail("it trained"), steps=3)
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("the plot needs matplotlib; pip install 'amprewrite[plot]'")


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_trains_as_in_float32(name, tmp_path, monkeypatch, capsys):
    for library in ("matplotlib", *NEEDS[name]):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(FOLDER))
    curves, drawn, plot = import_module("curves"), [], tmp_path / "losses.svg"
    draw = curves.draw

    def watched(losses, path):
        drawn.append(losses)
        draw(losses, path)

    monkeypatch.setattr(curves, "draw", watched)
    options = ["--steps", str(STEPS), "--seed", "1", "--out", str(plot)]
    monkeypatch.setattr("sys.argv", [name, *options])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    text = capsys.readouterr().out
    assert text.count(f"{STEPS}/{STEPS}") == 3  # progress bars
    printed = re.findall(r"^(.+): loss [\d.]+ to ([\d.]+)$", text, re.MULTILINE)
    losses = drawn[0]
    assert [kind for kind, _ in printed] == list(losses) == list(curves.KINDS)
    assert all(len(found) == STEPS for found in losses.values())
    assert plot.read_text("utf-8").count("line2d_") >= 3

    full, converted, cast = (np.asarray(found) for found in losses.values())
    last = {kind: float(loss) for kind, loss in printed}
    assert last["float32"] < 0.8 * full[0]  # it learns,
    assert last["converted"] == pytest.approx(last["float32"], rel=0.05)
    assert not np.array_equal(full, converted)  # and not in float32
    assert not np.array_equal(converted, cast)


def test_final_is_the_mean_of_the_last_tenth(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.syspath_prepend(str(FOLDER))
    final = import_module("curves").final
    assert final([*range(20)]) == 18.5
    assert final([3.0, 1.0]) == 1.0

"""The demo's model is found inside its package, or the missing package is named."""

import pytest

pytest.importorskip("torch")

from amprewrite.demo import run  # after the check for torch
from amprewrite.errors import UnsupportedError  # as above


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(run, "PACKAGE", "no_such_package")
    with pytest.raises(UnsupportedError, match="needs no_such_package"):
        run.model_folder()


def test_the_folder_has_what_transformers_loads():
    pytest.importorskip("transformers")
    pytest.importorskip(run.PACKAGE)
    names = {path.name for path in run.model_folder().iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names


def test_a_made_up_batch_is_the_same_each_time():
    ids, mask = run.made_up_batch(2, 16)
    assert ids.shape == mask.shape == (2, 16)
    assert mask.all()
    assert (run.made_up_batch(2, 16)[0] == ids).all()

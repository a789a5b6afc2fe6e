"""Rewritten programs, compared with recorded ones.

``python -m pytest tests/golden --update-goldens`` records them anew: read the diff.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.golden.cases import CASES, POLICIES  # after the skip
from tests.golden.record import record

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = [f"{case}.{policy}" for case in CASES for policy in POLICIES]


RELEASE = ".".join(torch.__version__.split(".")[:2])

OTHER: dict[str, tuple[str, ...]] = {
    # A checkpoint makes an empty tensor for each input, and the states of an LSTM in
    # float16 have one dimension more in a trace.
    "2.11": (*(f"checkpointed.{policy}" for policy in POLICIES), "lstm.fp16"),
    "2.12": ("lstm.fp16",),
}
"""Programs that a release of torch captures otherwise: files of their own."""

KEYED = [f"{name}.torch-{release}" for release in OTHER for name in OTHER[release]]


def golden(name: str) -> Path:
    keyed = name in OTHER.get(RELEASE, ())
    return HERE / "graphs" / f"{name}{f'.torch-{RELEASE}' if keyed else ''}.txt"


@pytest.mark.parametrize("name", FILES)
def test_a_program_is_rewritten_as_recorded(
    name: str, request: pytest.FixtureRequest
) -> None:
    found = record(*name.split("."))
    path = golden(name)
    if request.config.getoption("--update-goldens", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    assert path.exists(), f"record {path.name} with --update-goldens"
    assert found == path.read_text("utf-8")


def test_every_recorded_file_has_its_case() -> None:
    recorded = sorted(p.stem for p in (HERE / "graphs").iterdir())
    assert recorded == sorted([*FILES, *KEYED])
    for keyed in KEYED:  # it differs from the file of other releases
        name = keyed.partition(".torch-")[0]
        texts = [
            (HERE / "graphs" / f"{stem}.txt").read_text("utf-8")
            for stem in (name, keyed)
        ]
        assert texts[0] != texts[1]


def test_no_recorded_file_names_a_place_on_a_machine() -> None:
    slash = re.compile(r"(^|[\s\"'(])/\w")
    for path in (HERE / "graphs").iterdir():
        assert not slash.search(path.read_text("utf-8")), path.name


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_seed_of_hashes_gives_the_same_text(seed: str) -> None:
    command = [sys.executable, "-m", "tests.golden.record", "attention", "bf16"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == golden("attention.bf16").read_text("utf-8")

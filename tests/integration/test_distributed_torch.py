"""Two processes train one model: DDP and fully_shard, with a process that dies."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import mse_loss

import amprewrite
from amprewrite.training.torch import GradScaler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="no processes"),
    pytest.mark.filterwarnings("ignore:.*no process group:UserWarning"),
]

ROOT = Path(__file__).parents[2]
DDP = ROOT / "examples" / "distributed" / "train_ddp.py"
FSDP = ROOT / "examples" / "distributed" / "train_fsdp.py"
TIMEOUT = 240
"""Seconds for one run; it takes about ten on an idle machine."""


def launch(script: Path, *args: str, ranks: int = 2, gpu: bool = False) -> Any:
    """Run a script in several processes and return what torchrun did."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    given["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if not gpu:
        given["CUDA_VISIBLE_DEVICES"] = ""
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*runner, "--nproc-per-node", str(ranks), str(script), *args]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def curve(done: Any) -> dict[int, tuple[float, float]]:
    """Return loss and scale by step."""
    lines = re.findall(r"step (\d+): loss (\S+), scale (\S+)", done.stdout)
    return {int(step): (float(loss), float(scale)) for step, loss, scale in lines}


def alone(script: Path) -> list[float]:
    """Return the losses of one process without any group, on whole batches."""
    names = runpy.run_path(str(script))
    run = names["build"]().train()
    if script == DDP:
        run = amprewrite.convert(run, "fp16", args=(names["batch"](0)[0],))
    else:
        for index, block in enumerate(run):
            run[index] = amprewrite.convert(block, "fp16")
    optimizer = torch.optim.AdamW(run.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=8)
    losses: list[float] = []
    for step in range(30):
        x, y = names["batch"](step)
        optimizer.zero_grad()
        loss = mse_loss(run(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("script", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_two_processes_learn_as_one_and_a_killed_run_goes_on(
    script: Path, tmp_path: Path
) -> None:
    whole = launch(script)
    assert whole.returncode == 0, whole.stderr[-3000:]
    expected = curve(whole)
    losses = [loss for loss, _ in expected.values()]
    assert losses == pytest.approx(alone(script), rel=1e-3, abs=1e-3)
    assert losses[-1] < losses[0] / 5
    assert len({scale for _, scale in expected.values()}) >= 3

    save = ("--checkpoint", str(tmp_path / "run"))
    killed = launch(script, *save, "--kill-at", "17")
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr
    assert max(curve(killed)) < 20
    again = launch(script, *save)
    assert again.returncode == 0, again.stderr[-3000:]
    assert {**curve(killed), **curve(again)} == expected
    assert sorted(curve(again)) == list(range(15, 30))


@pytest.mark.gpu
@pytest.mark.parametrize("script", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_devices_learn_as_one_process(script: Path) -> None:
    done = launch(script, ranks=min(2, torch.cuda.device_count()), gpu=True)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [loss for loss, _ in curve(done).values()]
    assert losses == pytest.approx(alone(script), rel=5e-3, abs=5e-3)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What two processes found: for each check, a value of each process."""
    done = launch(ROOT / "tests" / "torch_ranks.py")
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = re.findall(r"^FOUND (.*)$", done.stdout, re.MULTILINE)
    return json.loads(line)


def test_gradients_of_a_float16_program_are_reduced_in_float32(found: Any) -> None:
    for dtypes in found["dtypes_reduced_by_ddp"]:
        assert set(dtypes) == {"torch.float32"}
    for sent in found["dtypes_sent_by_fully_shard"]:
        assert set(sent) == {
            "_allgather_base_ torch.float32",
            "_reduce_scatter_base_ torch.float32",
        }


def test_an_infinity_in_one_shard_skips_the_step_of_all(found: Any) -> None:
    for by_case in found["skipped_steps"]:
        finite = by_case.pop("finite")
        assert finite == [2.0**10, False]
        assert by_case
        assert all(case == [2.0**9, True] for case in by_case.values()), by_case
    assert found["skipped_step_of_ddp"] == [[2.0**9, True]] * 2
    for by_placement in found["skipped_steps_by_first_placement"]:
        assert list(by_placement.values()) == [2.0**9] * 2


def test_all_processes_name_the_parameter_that_is_not_finite(found: Any) -> None:
    assert found["error_at_the_least_scale"] == ["1.weight"] * 2


def test_a_sharded_model_changes_its_mode(found: Any) -> None:
    assert found["modes"] == [0, 0]


def test_a_model_is_built_without_memory(found: Any) -> None:
    assert found["built_without_memory"] == [0, 0]


def test_parameters_are_gathered_in_bfloat16_by_a_policy_of_fsdp(found: Any) -> None:
    for sent, off in found["gathered_in_bfloat16"]:
        assert sent == [
            "_allgather_base_ torch.bfloat16",
            "_reduce_scatter_base_ torch.float32",
        ]
        assert 0 < off < 2.0**-7


def test_low_weights_are_sharded(found: Any) -> None:
    """Rounded to nearest or with a residual, they are those of one process."""
    for by_rounding in found["low_weights"]:
        assert all(low for _, low in by_rounding.values())
        assert by_rounding["nearest"][0] < 1e-2
        assert by_rounding["kahan"][0] < 1e-2
        assert by_rounding["stochastic"][0] < 0.1


def test_parts_of_a_weight_are_rounded_by_other_draws_and_copies_by_the_same(
    found: Any,
) -> None:
    (one, copy), (other, same) = found["draws_of_low_weights"]
    assert copy == same
    assert one != other
    assert {value for row in (*one, *copy) for value in row} == {1.0, 1 - 2.0**-8}

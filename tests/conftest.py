"""What holds for every test: offline, seeded, one thread for each process."""

import atexit
import gc
import logging
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from tests.dtype_checks import dtypes_checked
from tests.jax_compiler import QUICKLY, as_by_default

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
# What `amprewrite calibrate` measured here must not decide what tests expect. Models
# of Hugging Face stay where they are.
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
os.environ.setdefault("HF_HOME", str(Path(CACHE) / "huggingface"))
NO_CALIBRATION = TemporaryDirectory(prefix="amprewrite-tests-")
atexit.register(NO_CALIBRATION.cleanup)
os.environ["XDG_CACHE_HOME"] = NO_CALIBRATION.name
os.environ["AMPREWRITE_PRICES"] = "default"  # the same plans on every machine
# Before anything imports jax: eight devices, so that meshes can be tested anywhere; and
# XLA compiles in a fifth of its time. Tests of its code ask for optimized_xla.
os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICKLY}"
)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IN_WORKER:  # before anything imports torch: workers share the cores
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["MKL_NUM_THREADS"] = "1"

# No deadline and no "too slow": both depend on what else the machine does.
settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", settings.get_profile("dev"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def reason_to_skip_gpu():
    """Why tests that need a CUDA device cannot run; empty if they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "no CUDA device"


def leave_torch_without_trace():
    """Keep the handlers of pytest away from the structured trace of torch.

    pytest gives them to each logger that does not propagate. By a handler torch knows
    that its trace is wanted, and then describes every tensor of every capture. Without
    one nothing is emitted, and nothing propagates.
    """
    logging.getLogger("torch.__trace").propagate = True


def pytest_collection_modifyitems(items):
    """Skip the tests marked ``gpu`` where there is none; ask torch only if needed."""
    leave_torch_without_trace()  # before the run begins, with handlers of its own
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    reason = reason_to_skip_gpu() if gpu_items else ""
    if reason:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """Take what is loaded by now, all modules and tests, out of collections to come.

    It lives as long as the process; each full collection went through it again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # Python 3.11 begins one after 700 objects


@pytest.fixture(scope="module")
def optimized_xla():
    """Compile as by default, for modules of tests that ask what XLA makes of it."""
    with as_by_default():
        yield


@pytest.fixture(scope="module")
def xla_passes():
    """Change programs as XLA does by default; their machine code is not optimized."""
    with as_by_default(machine_code=False):
        yield


def seed_no_absent_device(torch):
    """Let ``torch.manual_seed`` leave out devices that are not there.

    For each of them torch 2.13 formats the whole stack, to name the caller if one
    should appear: two milliseconds in each test, and samples of operators seed often.
    """
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = do_not_seed


def do_not_seed(_seed):
    """Seed nothing."""


@pytest.fixture(autouse=True)
def seeded_torch():
    """Seed torch if a test module has loaded it; do not load it for the others.

    torch starts from a seed of its own each time, so that a test which is the first to
    load it and shows what it drew has to seed it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    seed_no_absent_device(torch)
    torch.manual_seed(0)
    leave_torch_without_trace()
    if IN_WORKER:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def predicted_dtypes_are_checked():
    """Hold every rewrite of a test to the dtypes that the framework finds."""
    with dtypes_checked():
        yield

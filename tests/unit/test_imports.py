"""Importing the package is light, and the wheel is whole."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"flax", "equinox", "jax", "jaxlib", "torch", "transformers"}


def loaded_by(statement):
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "module",
    [
        *("amprewrite", "amprewrite.cli", "amprewrite.dtypes", "amprewrite.errors"),
        *("amprewrite.api", "amprewrite.frameworks.base", "amprewrite.verify"),
        *("amprewrite.training", "amprewrite.training.state"),
        "amprewrite.unit_scaling",
    ],
)
def test_importing_loads_no_framework(module):
    assert not loaded_by(f"import {module}") & HEAVY


USED_LATER = {
    *("matplotlib", "ml_dtypes", "networkx", "numpy", "pydantic", "pydantic_core"),
    *("rich", "scipy", "typer"),
    *("tempfile", "zipfile"),  # both come with importlib.resources
}
"""What computes, validates, solves and draws: loaded by what needs it."""


@pytest.mark.parametrize(
    "module",
    ["amprewrite", "amprewrite.dtypes", "amprewrite.plan", "amprewrite.policy"],
)
def test_what_is_heavy_is_loaded_where_it_is_used(module):
    assert not loaded_by(f"import {module}") & (USED_LATER | HEAVY)


def test_validation_is_loaded_where_a_file_is_read():
    read = "import amprewrite\namprewrite.load_policy('bf16')"
    assert "pydantic" in loaded_by(read)


def test_public_names_can_be_used_after_a_light_import():
    """And ``verify`` stays the function, though a package has that name."""
    names = (
        "from amprewrite import *\n"
        "import amprewrite.verify.compare\n"
        "from amprewrite.verify import Report\n"
        "assert amprewrite.verify is verify\n"
        "assert verify.__annotations__['return'] is Report\n"
        "assert Rule(op_class='deny').op_class == 'deny'"
    )
    loaded_by(names)


@pytest.mark.parametrize("module", ["jax", "torch"])
def test_the_check_above_can_fail(module):
    pytest.importorskip(module)
    assert module in loaded_by(f"import {module}")


@pytest.mark.slow
def test_a_wheel_has_the_policies_and_the_files_of_the_page(tmp_path):
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir"]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(ZipFile(wheel).namelist())
    policies = {f"amprewrite/policies/{p.name}" for p in ROOT.glob("policies/*.toml")}
    assert "amprewrite/policies/bf16.toml" in policies
    assert policies <= names
    assets = ROOT / "amprewrite" / "page" / "assets"
    page = {p.relative_to(ROOT).as_posix() for p in assets.rglob("*") if p.is_file()}
    assert "amprewrite/page/assets/vendor/versions.json" in page
    assert page <= names
    data = {"py.typed", "dtypes/op_rules.toml", "ops/ops.toml"}
    assert {"amprewrite/__init__.py", *(f"amprewrite/{x}" for x in data)} <= names


CONVERTS = """
import sys
sys.modules["jax"] = None
import torch
import amprewrite
model = torch.nn.Linear(4, 4).eval()
x = torch.randn(2, 4)
assert amprewrite.convert(model, args=(x,)).plan.lowered
"""
"""A program that would fail if anything imported JAX."""


VERIFIES_JAX = """
import sys
sys.modules["torch"] = None
import jax.numpy as jnp
import amprewrite
from amprewrite import cli
model = lambda x, y: x @ y
args = (jnp.ones((2, 4)), jnp.ones((4, 4)))
converted = amprewrite.convert(model, args=args)
assert converted.plan.lowered
assert amprewrite.verify(model, converted, args).ok
"""
"""A program that would fail if anything imported torch."""


def test_jax_conversion_works_without_torch() -> None:
    pytest.importorskip("jax")
    subprocess.run([sys.executable, "-c", VERIFIES_JAX], check=True)


CONVERTS_A_FUNCTION = """
import jax
import amprewrite
x = jax.numpy.ones((2, 2))
assert amprewrite.convert(jax.numpy.matmul, args=(x, x)).plan.lowered
"""


def test_converting_a_function_loads_no_library_of_modules() -> None:
    pytest.importorskip("jax")
    assert not loaded_by(CONVERTS_A_FUNCTION) & {"equinox", "flax", "optax", "torch"}


def test_conversion_works_without_jax() -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", CONVERTS], check=True)

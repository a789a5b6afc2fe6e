"""Inspect, convert and verify take JAX functions too."""

import json
import sys

import pytest

pytest.importorskip("jax")

import jax.numpy as jnp
from jax import export

from amprewrite.plan import Plan
from amprewrite.verify import Report
from tests.command_line import done, mistake, run

FILE = """
import jax
import jax.numpy as jnp

def forward(params, x):
    y = x @ params["w"]
    return jax.nn.softmax(y + params["b"])

def build():
    params = {"w": jnp.ones((16, 8)) / 3, "b": jnp.arange(8.0)}
    return forward, (params, jnp.ones((4, 16)) / 3)

def loud():
    return (lambda x: x @ x * 1e4), (jnp.full((4, 4), 10.0),)

def branches():
    return (lambda x: x if x.sum() > 0 else -x), (jnp.ones(2),)
"""


@pytest.fixture
def function(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "jax_function_of_a_test.py"
    path.write_text(FILE)
    yield f"{path}:build"
    sys.modules.pop("jax_function_of_a_test", None)


def test_inspect(function, tmp_path):
    text = done("inspect", function)
    assert "rewritten 1 of" in text
    assert "traced by JAX" in text
    assert "deny, by groups.exponential" in done(
        "inspect", function, "--explain", "exp"
    )
    graph = done("inspect", function, "--graph")
    assert "%params.w: f32[16,8] input" in graph
    assert "bf16" not in graph
    written = tmp_path / "plan.json"
    plan = Plan.from_json(json.loads(done("inspect", function, "--json")))
    done("inspect", function, "--output", written)
    assert plan == Plan.load(written)


def test_convert(function, tmp_path):
    assert "rewritten 1 of" in done("convert", function)
    assert "bf16[4,16]" in done("convert", function, "--graph")
    plan = tmp_path / "plan.json"
    done("inspect", function, "--override", "op=matmul,class=deny", "--output", plan)
    assert "bf16" not in done("convert", function, "--plan", plan, "--graph")


def test_convert_writes_the_program(function, tmp_path):
    file = tmp_path / "model.stablehlo"
    result = run("convert", function, "--out", file)
    assert result.exit_code == 0, result.stderr
    assert "jax.export.deserialize reads it" in result.stderr
    params = {"w": jnp.ones((16, 8)) / 3, "b": jnp.arange(8.0)}
    found = export.deserialize(bytearray(file.read_bytes()))
    assert found.call(params, jnp.ones((4, 16)) / 3).shape == (4, 8)


def test_verify(function):
    text = done("verify", function, "--gradients", "--rtol", "0.5")
    assert "bound 0.5: ok" in text
    assert "converted, jitted: " in text
    assert "params.w" in text
    report = Report.from_json(json.loads(done("verify", function, "--json")))
    assert report.reference == "float64"
    assert report.bound is not None
    assert report.error < report.bound


def test_verify_fails_where_something_overflows(function):
    result = run("verify", function.replace("build", "loud"), "--policy", "fp16")
    assert result.exit_code == 0  # the accumulator stays in float32
    result = run("verify", function, "--rtol", "1e-9")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("amprewrite: verification failed: output ")


def test_mistakes_are_one_line(function, tmp_path):
    line = mistake("inspect", function.replace("build", "forward"))
    assert "takes arguments (params, x); want a function without arguments" in line
    line = mistake("inspect", function.replace("build", "branches"))
    assert "cannot trace the function at jax_function_of_a_test.py:" in line
    line = mistake("convert", function, "--output", tmp_path / "model.pt2")
    assert line.endswith("want a name that ends in .json or .stablehlo")

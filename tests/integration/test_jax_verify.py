"""``amprewrite.verify`` on JAX functions: faults are found and named."""

import json

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

import amprewrite
from amprewrite.errors import UnsupportedError, VerifyError
from amprewrite.verify import Report

KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[0], (8, 64))
P = {
    "first": jax.random.normal(KEYS[1], (64, 64)) / 8,
    "last": jax.random.normal(KEYS[2], (64, 64)) / 8,
}


def sharp(p, x):
    """A softmax of large numbers that differ little."""
    return jax.nn.softmax((x @ p["first"]) * 3 + 200) @ p["last"]


def sum_of_squares(p, x):
    """Its sum is beyond the range of float16."""
    y = x @ p["first"]
    squares = (y * 50) ** 2 + 1100
    return {"size": jnp.sqrt(squares.sum(-1)), "mean": y.mean(-1)}


def recurrent(p, x):
    def turn(carry, row):
        return jnp.tanh(carry @ p["first"] + row @ p["last"]), carry.argmax()

    return lax.scan(turn, jnp.zeros(64), x)


@pytest.fixture(scope="module")
def converted():
    """The function of large numbers, converted."""
    return amprewrite.convert(sharp, args=(P, X))


@pytest.fixture(scope="module")
def sound(converted):
    """The report on it, with all that a report may have."""
    return amprewrite.verify(sharp, converted, (P, X), gradients=True, rtol=0.02)


def check(function, policy="bf16", args=(P, X), overrides=(), **options):
    """Convert and verify."""
    converted = amprewrite.convert(function, policy, args=args, overrides=overrides)
    return amprewrite.verify(function, converted, args, **options)


@pytest.mark.slow
def test_a_sound_conversion_is_ok_eager_and_jitted(sound):
    report = sound
    assert report.ok
    assert report.reference == "float64"
    assert set(report.baselines) == {"original", "converted, jitted", "cast all"}
    assert report.baselines["original"] < 1e-5 < report.error
    assert report.error < report.baselines["cast all"] / 2
    assert report.baselines["converted, jitted"] < 0.02
    (eager,), (jitted,) = report.outputs, report.jitted
    assert eager.name == jitted.name == "output"
    first = report.worst(1)[0]
    assert first.native == "dot_general"
    assert first.source.startswith("test_jax_verify.py:")


def test_an_op_that_should_not_be_low_is_named(sound):
    overrides = [{"op": op, "class": "allow"} for op in ("exp", "sub", "add", "mul")]
    faulty = check(sharp, overrides=overrides)
    assert faulty.error > 5 * sound.error
    assert faulty.worst(1)[0].canonical in {"add", "sub", "mul"}


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
def test_overflow_is_counted_named_and_raises():
    faulty = [{"op": op, "class": "allow"} for op in ("sum", "square", "integer_pow")]
    faulty += [{"op": op, "class": "allow"} for op in ("mul", "add", "pow", "sqrt")]
    wrong = amprewrite.convert(sum_of_squares, "fp16", args=(P, X), overrides=faulty)
    report = amprewrite.verify(sum_of_squares, wrong, (P, X))
    by_name = {output.name: output for output in report.outputs}
    assert by_name["size"].nonfinite_new == 8
    assert report.error == float("inf")
    assert not report.ok
    with pytest.raises(VerifyError, match=r"output size.*: 8 elements that are finite"):
        amprewrite.verify(sum_of_squares, wrong, (P, X), rtol=1e9)
    assert check(sum_of_squares, "fp16", rtol=0.01).ok


def test_the_error_names_output_found_wanted_and_the_worst_ops(converted):
    with pytest.raises(VerifyError) as raised:
        amprewrite.verify(sharp, converted, (P, X), rtol=1e-6)
    lines = str(raised.value).split("\n")
    assert lines[0].startswith("output output")
    assert "want at most 1e-06 against float64 (original " in lines[0]
    assert lines[0].endswith("allow more with rtol=")
    assert lines[1].startswith("  output output of the jitted function: relative")
    assert lines[2].startswith("  dot_general")


def test_a_fault_of_the_jitted_function_alone_is_found():
    class Differs:
        """Rounds only where it is traced."""

        def __call__(self, p, x):
            traced = isinstance(x, jax.core.Tracer)
            return sharp(p, x) * (1.5 if traced else 1)

    with pytest.raises(VerifyError, match="output output of the jitted function"):
        amprewrite.verify(sharp, Differs(), (P, X), rtol=0.1)
    report = amprewrite.verify(sharp, Differs(), (P, X))
    assert report.outputs[0].relative_l2 < 1e-5
    assert report.jitted[0].relative_l2 > 0.4


def test_other_structures_are_refused():
    with pytest.raises(VerifyError, match="want the same structure and shapes"):
        amprewrite.verify(sharp, lambda p, x: sharp(p, x)[0], (P, X))


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
def test_with_policy_off_only_the_noise_floor_is_left():
    report = check(sharp, "off")
    assert report.error == report.baselines["original"] < 1e-5
    assert set(report.baselines) == {"original", "converted, jitted"}
    assert report.ok


@pytest.mark.slow
def test_a_loop_is_verified_and_integers_are_counted():
    report = check(recurrent, gradients=True)
    assert [output.name for output in report.outputs] == ["0"]
    assert report.ok
    names = {gradient.name for gradient in report.gradients}
    assert names == {"p.first", "p.last", "x"}
    totals = report.gradient_baselines
    assert totals["original"] < 1e-5 < totals["converted"] < 0.05
    assert totals["converted, jitted"] < 0.05
    assert "scan.out0" in [op.op for op in report.ops]


def test_keywords_and_pytrees_are_passed_on():
    def scaled(p, x, *, scale):
        return {"y": [x @ p["first"] * scale]}

    kwargs = {"scale": np.float32(2)}
    converted = amprewrite.convert(scaled, args=(P, X), kwargs=kwargs)
    report = amprewrite.verify(scaled, converted, (P, X), kwargs)
    assert [output.name for output in report.outputs] == ["y.0"]
    assert report.ok


def test_a_report_prints_and_is_saved(sound, tmp_path):
    report = sound
    assert "converted, jitted" in str(report)
    html = report._repr_html_()
    assert "output, jitted" in html
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["jitted"][0]["name"] == "output"


def test_an_unknown_reference_is_refused(converted):
    with pytest.raises(UnsupportedError, match="unknown reference 'float16'"):
        amprewrite.verify(sharp, converted, (P, X), reference="float16")


def check_module(model, args):
    converted = amprewrite.convert(model, args=args)
    return amprewrite.verify(model, converted, args, gradients=True, rtol=0.02)


@pytest.mark.slow
def test_an_equinox_module_is_verified_by_its_parameters():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 4, 16, 1, key=KEYS[0])
    report = check_module(model, (X[0, :8],))
    assert [output.name for output in report.outputs] == ["output"]
    assert {g.name for g in report.gradients if not g.is_input} == {
        *("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    }
    assert [g.name for g in report.gradients if g.is_input] == ["x"]
    assert report.worst(1)[0].precision == "bfloat16"


@pytest.mark.slow
def test_a_linen_module_is_verified_by_its_parameters():
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(16), nn.LayerNorm(), nn.Dense(4)])
    variables = model.init(KEYS[0], X)
    report = check_module(model, (variables, X))
    assert [output.name for output in report.outputs] == ["output"]
    assert "params.layers_0.kernel" in {g.name for g in report.gradients}
    assert all("params" in g.name for g in report.gradients if not g.is_input)
    assert report.baselines["cast all"] > report.error


@pytest.mark.slow
def test_an_nnx_module_is_verified_and_keeps_its_state():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(64, 16, rngs=rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(self.norm(self.linear(x)))

    model = Net(nnx.Rngs(0))
    before = np.asarray(model.norm.mean[...])
    report = check_module(model, (X,))
    np.testing.assert_array_equal(model.norm.mean[...], before)
    assert [output.name for output in report.outputs] == ["output"]
    assert {g.name for g in report.gradients} == {
        *("linear.kernel", "linear.bias", "norm.scale", "norm.bias", "x")
    }
    assert report.ok

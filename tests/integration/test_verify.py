"""``amprewrite.verify`` on whole models: faults are found and named."""

import dataclasses
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError, VerifyError
from amprewrite.verify import Report

X = torch.randn(8, 64)


class Offset(nn.Module):
    """A norm after a large offset: its operand must not be read in low precision."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        return self.last(self.norm(self.first(x) + 100))


class Sharp(nn.Module):
    """A softmax of large numbers that differ little."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return (self.linear(x) * 3 + 200).softmax(-1) @ x.mT


class SumOfSquares(nn.Module):
    """Its sum is beyond the range of float16."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        squares = (self.linear(x) * 50) ** 2 + 1100
        return {"size": squares.sum(-1).sqrt(), "mean": self.linear(x).mean(-1)}


class Block(nn.Module):
    """A small pre-norm transformer block."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def check(model, policy="bf16", args=(X,), overrides=(), **options):
    """Convert and verify."""
    converted = amprewrite.convert(model, policy, args=args, overrides=overrides)
    return amprewrite.verify(model, converted, args, **options)


@pytest.mark.parametrize(
    ("model", "op"), [(Offset, "layer_norm"), (Sharp, "softmax")], ids=str
)
def test_an_op_that_should_not_be_low_is_named_first(model, op):
    held = model().eval()
    sound = check(held, rtol=0.02)
    assert sound.ok
    faulty = check(held, overrides=[{"op": op, "class": "allow"}])
    assert not faulty.ok
    assert faulty.error > 5 * sound.error
    first, second = faulty.worst(2)
    assert first.canonical == op
    assert first.precision == "bfloat16"
    assert first.source.startswith("test_verify.py:")
    assert first.own > 5 * second.own


def test_the_error_names_output_found_wanted_and_the_worst_ops():
    model = Offset().eval()
    with pytest.raises(VerifyError) as raised:
        check(model, overrides=[{"op": "layer_norm", "class": "allow"}], rtol=0.02)
    lines = str(raised.value).split("\n")
    assert lines[0].startswith("output output: relative error 0.")
    assert "want at most 0.02 against float64" in lines[0]
    assert len(lines) == 5
    assert "error.report.blame() measures which ops cause it" in lines[4]
    assert lines[1].startswith("  layer_norm (aten.layer_norm.default, bfloat16)")
    assert " at norm, test_verify.py:" in lines[1]
    report = raised.value.report
    assert isinstance(report, Report)
    assert report.bound == 0.02
    assert not report.ok


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
def test_overflow_is_counted_named_and_raises():
    model = SumOfSquares().eval()
    faulty = [{"op": "sum", "class": "allow"}]
    report = check(model, "fp16", overrides=faulty)
    by_name = {output.name: output for output in report.outputs}
    assert (by_name["size"].nonfinite, by_name["size"].nonfinite_new) == (8, 8)
    assert by_name["mean"].nonfinite == 0
    assert report.error == float("inf")
    assert report.worst(1)[0].canonical == "sum"
    assert report.worst(1)[0].nonfinite == 8
    with pytest.raises(VerifyError, match="output size: 8 elements that are finite"):
        check(model, "fp16", overrides=faulty, rtol=1e9)
    assert check(model, "fp16", rtol=0.01).ok


def test_where_the_original_overflows_too_it_is_no_fault():
    class Infinite(nn.Linear):
        def forward(self, input):  # noqa: A002  # torch's own name
            y = super().forward(input)
            return torch.cat([y, torch.full((8, 1), torch.inf)], -1)

    report = check(Infinite(64, 64).eval(), rtol=0.01)
    (output,) = report.outputs
    assert output.nonfinite_reference == output.nonfinite == 8
    assert output.nonfinite_new == 0


def test_with_policy_off_only_the_noise_floor_is_left():
    model = Block().eval()
    x = torch.randn(2, 8, 32)
    converted = amprewrite.convert(model, "off", args=(x,))
    with torch.no_grad():
        assert torch.equal(converted(x), model(x))
    report = amprewrite.verify(model, converted, (x,))
    assert report.error == report.baselines["original"]
    assert 0 < report.error < 1e-6
    assert report.ok
    assert set(report.baselines) == {"original"}
    moved = [op for op in report.ops if op.canonical in ("permute", "view", "unbind")]
    assert len(moved) >= 3
    assert all(op.own == 0 for op in moved)


def test_a_bit_exact_op_in_low_precision_has_no_error_of_its_own():
    model = Block().eval()
    report = check(model, args=(torch.randn(2, 8, 32),))
    exact = [op for op in report.ops if op.canonical in ("permute", "view", "reshape")]
    assert {op.precision for op in exact} == {"bfloat16"}
    assert all(op.own == 0 < op.accumulated for op in exact)
    products = [op for op in report.ops if op.canonical == "linear"]
    assert all(1e-3 < op.own < 1e-2 for op in products)


def test_gradients_of_a_small_transformer():
    torch.manual_seed(1)
    model = Block().train()
    x = torch.randn(2, 8, 32)
    converted = amprewrite.convert(model, args=(x,))
    report = amprewrite.verify(model, converted, (x,), gradients=True)
    names = {g.name: g.is_input for g in report.gradients}
    parameters = dict.fromkeys(dict(model.named_parameters()), False)
    assert names == {**parameters, "args.0": True}
    assert all(0 < (g.original or 0) < 1e-5 < g.relative_l2 for g in report.gradients)
    assert all(gradient.cosine > 0.99 for gradient in report.gradients)
    totals = report.gradient_baselines
    assert totals["original"] < 1e-5 < totals["converted"]
    assert totals["converted"] < 1.5 * totals["autocast"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_wrong_gradients_are_found():
    class Detached(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.up, self.down = model[0], model[1]

        def forward(self, x):
            return self.down(self.up(x).detach() + 0 * self.up(x))

    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    faulty = Detached(model)
    reference = nn.ModuleDict({"up": model[0], "down": model[1]})
    reference.forward = model.forward
    report = amprewrite.verify(reference, faulty, (X,), gradients=True)
    by_name = {gradient.name: gradient for gradient in report.gradients}
    assert by_name["up.weight"].relative_l2 == 1
    assert by_name["down.weight"].relative_l2 < 1e-5


def test_a_report_survives_json():
    report = check(Block().train(), args=(torch.randn(2, 8, 32),), gradients=True)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert Report.from_json(data) == report


def test_verify_finds_a_rewriting_that_is_wrong():
    model = Block().eval()
    x = torch.randn(2, 8, 32)
    converted = amprewrite.convert(model, args=(x,))
    node = next(n for n in converted.rewritten.graph.nodes if n.name == "gelu")
    node.target = torch.ops.aten.relu.default
    node.kwargs = {}
    report = amprewrite.verify(model, converted, (x,))
    assert report.worst(1)[0].op == "gelu"
    assert report.worst(1)[0].own > 0.1


def test_bert_with_a_model_output():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = transformers.BertModel(config).eval()
    kwargs = {
        "input_ids": torch.randint(50, (2, 12)),
        "attention_mask": torch.tensor([[1] * 12, [1] * 7 + [0] * 5]),
    }
    converted = amprewrite.convert(model, args=(), kwargs=kwargs)
    report = amprewrite.verify(model, converted, (), kwargs, rtol=0.05)
    names = [output.name for output in report.outputs]
    assert names == ["last_hidden_state", "pooler_output"]
    assert report.reference == "float64"
    assert report.error < 1.5 * report.baselines["autocast"]
    assert report.error < report.baselines["cast all"]
    assert any(op.path == "encoder.layer.1.output.dense" for op in report.ops)
    assert len(report.ops) > 30


def test_a_model_exported_at_its_first_call_has_errors_by_op():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).eval()
    lazy = amprewrite.convert(model)
    with torch.no_grad():
        lazy(X)
    report = amprewrite.verify(model, lazy, (X,), rtol=0.02)
    assert report.ok
    assert any(op.canonical == "linear" for op in report.ops)


def test_a_model_captured_by_dynamo_has_outputs_only():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).eval()
    lazy = amprewrite.convert(model)
    lazy(X)  # with gradients
    report = amprewrite.verify(model, lazy, (X,), rtol=0.02)
    assert report.ops == ()
    assert any("no errors by op" in note for note in report.notes)
    assert report.bound == 0.02
    assert 0 < report.error < 0.02


def test_any_callable_can_be_verified():
    model = nn.Linear(64, 64).eval()
    report = amprewrite.verify(model, lambda x: model(x) * 1.5, (X,))
    assert report.error == pytest.approx(0.5, rel=1e-3)
    assert report.bound is None


def test_outputs_of_another_structure_are_refused():
    model = nn.Linear(64, 64).eval()
    with pytest.raises(
        VerifyError, match=r"output output: .*gives none.*float\[8, 64\]"
    ):
        amprewrite.verify(model, lambda x: (model(x),), (X,))
    with pytest.raises(VerifyError, match=r"gives float\[4, 64\]"):
        amprewrite.verify(model, lambda x: model(x)[:4], (X,))


def test_integer_outputs_that_differ_are_a_violation():
    model = nn.Linear(64, 64).eval()
    report = amprewrite.verify(
        type(
            "Both", (nn.Sequential,), {"forward": lambda s, x: (s[0](x), s[0](x) > 0)}
        )(model),
        lambda x: (model(x), model(x) > 0.1),
        (X,),
    )
    assert not report.ok
    assert "differ from float64, in the original itself 0" in report.problems[0]


class Classifier(nn.Module):
    """Gives the place of the largest of many numbers that are nearly equal."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 50)

    def forward(self, x):
        y = self.linear(x)
        return y, y.argmax(-1)


def test_classes_that_differ_fail_whatever_the_bound():
    torch.manual_seed(0)
    model, x = Classifier().eval(), torch.randn(400, 64)
    report = check(model, args=(x,))
    (row,) = report.discrete
    assert (row.name, row.size, row.original) == ("1", 400, 0)
    assert row.differing > 0
    assert not report.ok
    with pytest.raises(VerifyError, match=r"output 1 \(int64\): .* nearly tied"):
        check(model, args=(x,), rtol=1.0)
    assert check(model, "off", args=(x,), rtol=1e-5).ok


def test_a_plan_made_for_a_tolerance_is_held_to_it():
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers).eval()
    options = {"args": (X,), "placement": "optimal", "tolerance": 4e-3}
    converted = amprewrite.convert(model, **options)
    report = amprewrite.verify(model, converted, (X,))
    assert (report.bound, report.together) == (4e-3, True)
    assert report.ok
    strict = dataclasses.replace(converted.plan, tolerance=report.error / 2)
    again = amprewrite.convert(model, args=(X,), plan=strict)
    assert not amprewrite.verify(model, again, (X,)).ok


def test_a_model_that_names_no_dtype_is_not_said_to():
    assert check(nn.Linear(64, 64).eval()).notes == ()


class KeyBias(nn.Module):
    """Attention, which does not depend on the bias of its keys."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return (self.query(x) @ self.key(x).mT / 8).softmax(-1) @ x


def test_a_gradient_that_is_zero_is_compared_by_its_size():
    torch.manual_seed(0)
    report = check(KeyBias().train(), args=(torch.randn(2, 8, 64),), gradients=True)
    by_name = {row.name: row for row in report.gradients}
    assert [name for name, row in by_name.items() if row.zero] == ["key.bias"]
    assert by_name["key.bias"].relative_l2 < 0.1
    assert all(row.relative_l2 < 0.1 for row in report.gradients)
    assert "1 of them are zero but for rounding" in report.summary()


def test_an_unknown_reference_is_refused():
    model = nn.Linear(64, 64)
    with pytest.raises(UnsupportedError, match="want float64 or float32"):
        amprewrite.verify(model, model, (X,), reference="float16")


def test_the_function_is_not_hidden_by_the_package_of_its_name():
    code = "import amprewrite.verify.metrics, amprewrite; amprewrite.verify.__code__"
    subprocess.run([sys.executable, "-c", code], check=True)

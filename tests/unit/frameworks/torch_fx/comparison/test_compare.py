import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.comparison.compare import measure, walk
from amprewrite.measure import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Call

X = torch.randn(4, 16)


class Named(nn.Module):
    """Names float32 in three ways, and makes numbers without naming a dtype."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("scale", torch.full((16,), 1 / 3))

    def forward(self, x):
        y = self.linear(x).float() * self.scale
        y = y.to(torch.float32) + torch.full((16,), 1 / 3)
        return y * torch.zeros(16, dtype=torch.float32).add_(1 / 3)


class Doubtful(nn.Module):
    """Cannot run in float64."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        if x.dtype == torch.float64:
            msg = "no kernel for Double\nand a second line"
            raise NotImplementedError(msg)
        return self.linear(x)


def measured(model, converted=None, args=(X,), **options):
    model.eval()
    other = amprewrite.convert(model, args=args) if converted is None else converted
    return measure(model, other, Call(args, {}, **options))


def test_the_reference_is_float64_also_where_the_model_names_float32():
    model = Named()
    found = measured(model, model)
    assert found.reference == "float64"
    x, linear, third = X.double(), model.linear, float(torch.tensor(1 / 3))
    with torch.no_grad():
        y = x @ linear.weight.double().T + linear.bias.double()
    wanted = (y * (1 / 3) + 1 / 3) * (1 / 3)
    # the buffer holds 1/3 as float32: that is a value of the model
    exact = (y * third + 1 / 3) * (1 / 3)
    reference = found.runs[REFERENCE].outputs["output"]
    assert abs(reference - exact.numpy()).max() < 1e-14
    assert abs(reference - wanted.numpy()).max() > 1e-10
    assert "names a float dtype in 3 calls" in found.notes[0]


def test_a_model_that_does_not_run_in_float64_is_compared_in_float32_and_says_so():
    model = Doubtful()
    found = measured(model, model)
    assert found.reference == "float32"
    (note,) = found.notes
    assert note == (
        "the reference is float32: the model does not run in float64 "
        "(NotImplementedError: no kernel for Double)"
    )
    same = found.runs[REFERENCE].outputs["output"]
    assert (same == found.runs[ORIGINAL].outputs["output"]).all()


def test_a_reference_in_float32_of_a_low_model_is_upcast():
    model = nn.Linear(16, 16).bfloat16()
    found = measured(model, model, (X.bfloat16(),), reference="float32")
    with torch.no_grad():
        wanted = model.float()(X.bfloat16().float()).double().numpy()
    assert found.reference == "float32"
    assert (found.runs[REFERENCE].outputs["output"] == wanted).all()


def test_the_original_model_and_its_arguments_are_left_alone():
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).train()
    state = {name: held.clone() for name, held in model.state_dict().items()}
    measure(model, model, Call((X,), {}, gradients=True))
    for name, held in model.state_dict().items():
        assert torch.equal(held, state[name]), name
        assert held.dtype == state[name].dtype
    assert torch.get_default_dtype() == torch.float32


def test_baselines_are_what_a_user_would_write():
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)).eval()
    found = measured(model)
    with torch.no_grad():
        plain = model(X)
        with torch.autocast("cpu", torch.bfloat16):
            autocast = model(X)
        low = model.bfloat16()(X.bfloat16())
    wanted = {ORIGINAL: plain, "autocast": autocast, "cast all": low}
    for name, tensor in wanted.items():
        held = found.runs[name].outputs["output"]
        assert (held == tensor.double().numpy()).all(), name
    assert found.runs[CONVERTED].dtypes == {"output": "float32"}


def test_a_baseline_that_fails_is_recorded():
    class NeedsFloat32(nn.Linear):
        def forward(self, input):  # noqa: A002  # torch's own name
            if input.dtype == torch.bfloat16:
                msg = "want float32"
                raise TypeError(msg)
            return super().forward(input)

    found = measured(NeedsFloat32(16, 16))
    assert found.failures == {"cast all": "TypeError: want float32"}
    assert "autocast" in found.runs


def test_a_converted_model_that_fails_raises():
    with pytest.raises(ZeroDivisionError):
        measured(nn.Linear(16, 16), lambda _: 1 / 0)


class Pointwise(nn.Module):
    """Products of roundings that a compiler leaves out where it fuses ops."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        y = self.linear(x).relu() * 1.7 + 0.3
        return (y * y * y) @ y.T


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"target": "compiled"}, {"compile": True}])
def test_a_model_for_a_compiler_is_also_run_compiled(options):
    model = Pointwise().eval()
    converted = amprewrite.convert(model, args=(X,), **options)
    found = measured(model, converted)
    assert list(found.runs)[:4] == [REFERENCE, CONVERTED, ORIGINAL, JITTED]
    assert (found.failures, found.notes) == ({}, ())
    outputs = {name: run.outputs["output"] for name, run in found.runs.items()}
    with torch.no_grad():
        eager = amprewrite.convert(model, args=(X,), target="compiled")(X)
        fused = converted(X) if "compile" in options else torch.compile(converted)(X)
    assert (outputs[CONVERTED] == eager.double().numpy()).all()
    assert (outputs[JITTED] == fused.double().numpy()).all()
    assert (outputs[JITTED] != outputs[CONVERTED]).any()
    gradients = measured(model, converted, gradients=True).runs
    assert gradients[JITTED].gradients.keys() == gradients[CONVERTED].gradients.keys()


def test_a_model_that_runs_op_by_op_is_not_compiled():
    assert JITTED not in measured(nn.Linear(16, 16)).runs


def test_a_compiler_that_is_not_there_is_recorded(monkeypatch):
    def refuse(*_args):
        msg = "no compiler"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch, "compile", refuse)
    model = nn.Linear(16, 16).eval()
    found = measured(model, amprewrite.convert(model, args=(X,), target="compiled"))
    assert found.failures == {JITTED: "RuntimeError: no compiler"}


def test_a_model_that_draws_random_numbers_is_not_compared_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).train()
    converted = amprewrite.convert(model, args=(X,), target="compiled")
    found = measure(model, converted, Call((X,), {}))
    assert JITTED not in (*found.runs, *found.failures)
    assert "is not compared compiled" in found.notes[1]


def test_random_numbers_are_told():
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).train()
    found = measure(model, model, Call((X,), {}))
    assert "draws random numbers" in found.notes[0]


def test_without_a_graph_there_are_no_ops_and_a_note_says_why():
    model = nn.Linear(16, 16)
    lazy = amprewrite.convert(model.eval())
    for converted, said in ((lazy, "captured by torch.compile"), (model, "Linear")):
        walked = walk(model, converted, Call((X,), {}), lambda _: None)
        assert (walked.reference, walked.graph) == ("", None)
        assert said in walked.notes[0]


def test_another_program_is_not_compared_op_by_op():
    one = amprewrite.convert(nn.Linear(16, 16).eval(), args=(X,))
    other = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval()
    walked = walk(other, one, Call((X,), {}), lambda _: None)
    assert walked.reference == ""
    assert "another program" in walked.notes[0]


def noted(names):
    """Take note of the ops of the plan, not of what was inserted."""
    return lambda sample: None if sample.decision else names.append(sample.op)


def test_a_model_captured_with_extents_that_vary_is_compared_op_by_op():
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            y = self.linear(x).view(x.shape[0] * 2, 8)
            return y.relu().view(-1, 16)

    model = Split().eval()
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    converted = amprewrite.convert(model, args=(X,), dynamic_shapes=shapes)
    names = []
    args = (torch.randn(6, 16),)
    walked = walk(model, converted, Call(args, {}), noted(names))
    assert walked.reference == "float64", walked.notes
    assert names == ["linear", "view", "relu", "view_1"]


def test_an_exported_program_can_be_the_original():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval()
    program = torch.export.export(model, (X,))
    converted = amprewrite.convert(program, args=(X,))
    call = Call((X,), {})
    found = measure(program, converted, call)
    assert found.reference == "float64"
    names = []
    walked = walk(program, converted, call, noted(names))
    assert walked.reference == "float64"
    assert names == ["linear", "relu"]


def test_a_recurrent_model_has_a_reference_in_float64():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(16, 8)

        def forward(self, x):
            return self.lstm(x)[0]

    model = Recurrent()
    found = measured(model, model)
    assert found.reference == "float64"
    original, reference = (
        found.runs[n].outputs["output"] for n in (ORIGINAL, REFERENCE)
    )
    assert 0 < abs(original - reference).max() < 1e-6


def test_tied_weights_stay_tied_in_the_reference():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 16), nn.Linear(16, 10)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    model = Tied().train()
    args = (torch.arange(10),)
    found = measure(model, model, Call(args, {}, gradients=True))
    gradients = found.runs[REFERENCE].gradients
    assert set(gradients) == {"embed.weight", "head.bias"}
    wanted = found.runs[ORIGINAL].gradients["embed.weight"]
    assert abs(gradients["embed.weight"] - wanted).max() < 1e-6

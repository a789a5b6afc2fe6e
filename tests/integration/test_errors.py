"""What users are told when something cannot be done: where, what, and what to do."""

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite import errors
from tests.torch_programs import Program


class Scaled(nn.Module):
    """A layer whose result is scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.a(x) * scale


def a_model() -> nn.Module:
    return Scaled().eval()


def an_input() -> Any:
    return torch.randn(4, 8)


def refusal(kind: type[Exception], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as caught:
        amprewrite.convert(*args, **kwargs)
    assert isinstance(caught.value, errors.AmpError)
    return str(caught.value)


def test_an_unknown_policy_is_told_the_nearest_name() -> None:
    message = refusal(ValueError, a_model(), "bf61", args=(an_input(),))
    assert message.startswith("unknown policy 'bf61'; want ")
    assert "did you mean 'bf16'?" in message


def test_a_policy_file_has_all_its_mistakes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "bf16"\ncolour = "red"\n[dtypes]\nlow = "bf17"\n'
        '[ops]\nexp = "den"\n[[rules]]\npath = "a"\n',
        encoding="utf-8",
    )
    with pytest.raises(errors.PolicyError) as caught:
        amprewrite.convert(a_model(), path, args=(an_input(),))
    assert str(caught.value).startswith(f"policy {path}: 4 mistakes")
    assert [line.split(":")[0] for line in sorted(caught.value.mistakes)] == [
        "colour",
        "dtypes.low",
        "ops.exp.class",
        "rules[0].class",
    ]


def test_an_op_that_is_misspelt_is_told_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "bf16"\n[ops]\nsoftmx = "deny"\n', encoding="utf-8")
    message = refusal(errors.PolicyError, a_model(), path, args=(an_input(),))
    assert "did you mean 'softmax'?" in message


def test_an_override_without_a_class_is_a_mistake() -> None:
    overrides = [{"op": "linear"}]
    message = refusal(
        errors.PolicyError, a_model(), args=(an_input(),), overrides=overrides
    )
    assert message.startswith("overrides[0]: 1 mistake")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"placement": "best"}, "unknown placement 'best'; want promote"),
        ({"target": "gpu"}, "unknown target 'gpu'; want eager or compiled"),
        (
            {"tolerance": 1e-3, "placement": "promote"},
            "placement 'promote' takes no tolerance",
        ),
    ],
)
def test_an_option_that_is_not_there_is_told_which_are(
    given: dict[str, Any], wanted: str
) -> None:
    assert wanted in refusal(
        NotImplementedError, a_model(), args=(an_input(),), **given
    )


@pytest.mark.parametrize("model", ["bert", None, 3, nn.Linear, {"model": 1}])
def test_what_is_no_model_is_refused(model: Any) -> None:
    message = refusal(errors.UnsupportedError, model, args=(an_input(),))
    assert message.startswith(
        f"cannot convert a {type(model).__name__}; want a torch.nn"
    )


def data_dependent(m: Any, x: Any) -> Any:
    h = m.a(x)
    if float(h.sum()) > 0:
        return m.b(h)
    return m.b(-h)


def test_a_model_that_export_cannot_capture_goes_through_dynamo() -> None:
    model = Program(data_dependent, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(an_input(),))
    assert "test_errors.py:" in program.plan.captured
    assert program.plan.lowered


def test_a_model_that_cannot_be_inspected_is_told_its_line_and_a_way_out() -> None:
    model = Program(data_dependent, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    with pytest.raises(errors.CaptureError) as caught:
        amprewrite.inspect(model, args=(an_input(),))
    message = str(caught.value)
    line = data_dependent.__code__.co_firstlineno + 2
    assert f"test_errors.py:{line}: " in message
    assert message.startswith("Program cannot be captured by torch.export at ")
    assert "convert without args may work" in message


def test_a_model_made_in_inference_mode_is_told_how_to_be_captured() -> None:
    with torch.inference_mode():
        model = nn.Linear(8, 8).eval()
    given: dict[str, Any] = {"placement": "optimal", "tolerance": 0.1}
    message = refusal(errors.UnsupportedError, model, args=(an_input(),), **given)
    assert "made in torch.inference_mode()" in message
    assert "make it outside and load its state_dict()" in message

    outside = nn.Linear(8, 8).eval()
    outside.load_state_dict(model.state_dict())
    program = amprewrite.convert(outside, args=(an_input(),))
    assert program.plan.captured == "captured by torch.export"


def test_a_model_that_fails_on_its_arguments_is_told_so() -> None:
    message = refusal(RuntimeError, a_model(), args=(torch.randn(4, 9),))
    assert message.startswith("Scaled itself fails on these arguments at ")
    assert "pass arguments that the model runs with" in message


def test_a_model_on_two_devices_is_refused() -> None:
    model = a_model()
    model.add_module("far", nn.Linear(8, 8, device="meta"))
    message = refusal(RuntimeError, model, args=(an_input(),))
    assert message.startswith("model has tensors on cpu, meta; want one device")


def test_a_module_that_was_not_called_has_no_plan() -> None:
    program = amprewrite.convert(a_model())
    for ask in (lambda: program.plan, lambda: program.casts):
        with pytest.raises(
            RuntimeError, match="call it once, or convert with args"
        ) as e:
            ask()
        assert isinstance(e.value, errors.NotCapturedError)


def test_wrong_arguments_are_named_beside_those_of_the_capture() -> None:
    exported = torch.export.export(a_model(), (an_input(),))
    program = amprewrite.convert(exported)
    with pytest.raises(TypeError) as caught:
        program(an_input(), scale=2.0)
    assert "called with (x, scale); it was captured with (x)" in str(caught.value)


def test_wrong_arguments_are_named_beside_the_signature_of_the_model() -> None:
    program = amprewrite.convert(nn.Linear(8, 8).eval(), args=(an_input(),))
    with pytest.raises(TypeError, match=r"Linear\.forward\(input.*'scale'"):
        program(an_input(), scale=2.0)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (torch.randn(4, 8).double(), "f64[4,8]"),
        (torch.randn(5, 8), "f32[5,8]"),
        (torch.randn(8), "f32[8]"),
    ],
)
def test_a_tensor_of_another_kind_is_named_beside_that_of_the_capture(
    other: Any, found: str
) -> None:
    program = amprewrite.convert(torch.export.export(a_model(), (an_input(),)))
    with pytest.raises(ValueError, match=r"pass dynamic_shapes=") as caught:
        program(other)
    assert f"is {found}; the program was captured for f32[4,8]" in str(caught.value)


def test_a_plan_of_another_program_is_refused() -> None:
    plan = amprewrite.inspect(a_model(), args=(an_input(),))
    other = Program(lambda m, x: m.a(x).exp(), a=nn.Linear(8, 8)).eval()
    message = refusal(ValueError, other, args=(an_input(),), plan=plan)
    assert message.startswith("plan does not fit the program: ")


def test_a_plan_without_arguments_is_refused() -> None:
    plan = amprewrite.inspect(a_model(), args=(an_input(),))
    assert "plan= needs args=" in refusal(NotImplementedError, a_model(), plan=plan)


def test_inspect_wants_arguments() -> None:
    with pytest.raises(errors.UnsupportedError, match="inspect needs args="):
        amprewrite.inspect(a_model())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_that_is_low_already_is_left_alone_and_says_so(dtype: Any) -> None:
    model = a_model().to(dtype)
    x = an_input().to(dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.warns(errors.AmpWarning, match=f"the model is already in {name}"):
        program = amprewrite.convert(model, args=(x,))
    assert program.casts == ()
    assert any("rewritten 0 of " in line for line in program.plan.warnings)
    assert torch.equal(program(x), model(x))


def test_a_rule_that_matches_nothing_is_warned_of() -> None:
    overrides = [{"path": "decoder.*", "class": "deny"}]
    with pytest.warns(errors.AmpWarning, match="unused rule: overrides"):
        amprewrite.convert(a_model(), args=(an_input(),), overrides=overrides)


def test_a_path_that_is_a_module_means_all_that_is_in_it() -> None:
    layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(11)]
    model = nn.Sequential(*layers).eval()
    rules = [{"path": "1", "class": "deny"}]
    plan = amprewrite.inspect(model, args=(an_input(),), overrides=rules)
    full = {d.path for d in plan.decisions if d.op_class == "deny"}
    assert full == {"1.0", "1.1"}


def test_a_rule_that_matches_nothing_is_told_the_nearest_paths() -> None:
    model = nn.Sequential(a_model()).eval()
    given: dict[str, Any]
    for given in ({"args": (an_input(),)}, {}):
        rules = [{"path": "a", "class": "deny"}]
        with pytest.warns(errors.AmpWarning, match=r"no module path is 'a'.*'0\.a'"):
            amprewrite.convert(model, overrides=rules, **given)(an_input())


def test_an_op_of_a_rule_that_is_misspelt_is_told_the_nearest() -> None:
    rules = [{"op": "layernorm", "class": "deny"}]
    message = refusal(errors.PolicyError, a_model(), overrides=rules)
    assert "did you mean 'layer_norm'?" in message


def test_warnings_point_to_the_line_of_the_user() -> None:
    rules = [{"path": "decoder.*", "class": "deny"}]
    lazy = amprewrite.convert(a_model(), overrides=rules)
    promoting = amprewrite.convert(a_model(), "promote", overrides=rules)
    x = an_input()
    calls = (
        lambda: amprewrite.convert(a_model(), args=(x,), overrides=rules),
        lambda: lazy(x),
        lambda: promoting(x),
    )
    for call in calls:
        with pytest.warns(errors.AmpWarning) as caught:
            call()
        places = {(warning.filename, warning.lineno) for warning in caught}
        assert places == {(__file__, call.__code__.co_firstlineno)}


class Autocast(nn.Module):
    """A model that opens an autocast region of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.a(x)


def test_nothing_lowered_is_told_the_users_own_reason() -> None:
    plan = amprewrite.inspect(Autocast().eval(), args=(an_input(),))
    (line,) = plan.warnings
    assert line.endswith("kept: inside an autocast region that the model writes")
    rules = [{"op": "linear", "class": "deny"}]
    plan = amprewrite.inspect(a_model(), args=(an_input(),), overrides=rules)
    (line,) = plan.warnings
    assert "the policy allows 1 of them, which are kept: overrides[0], rule" in line


def raises_always(m: Any, x: Any) -> Any:
    if float(m.a(x).sum()) < float("inf"):
        raise ValueError("no")
    return x


def test_what_was_just_tried_is_not_advised() -> None:
    model = Program(data_dependent, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    lazy = amprewrite.convert(model, args=(an_input(),))
    assert "convert without args" not in lazy.plan.captured
    promoting = amprewrite.convert(model, "promote")
    with pytest.raises(errors.CaptureError) as caught:
        promoting(an_input())
    assert "convert without args" not in str(caught.value)
    model = Program(raises_always, a=nn.Linear(8, 8)).eval()
    message = refusal(errors.CaptureError, model, args=(an_input(),))
    assert "convert without args" not in message


def test_the_other_mode_is_another_program() -> None:
    program = amprewrite.convert(a_model(), args=(an_input(),))
    with pytest.raises(NotImplementedError, match=r"call model\.train\(\) and convert"):
        program.train()
    assert program.eval() is program


def test_a_failed_conversion_leaves_the_model_as_it_was() -> None:
    model = a_model()
    before = copy.deepcopy(model.state_dict())
    refusal(ValueError, model, "bf61", args=(an_input(),))
    refusal(RuntimeError, model, args=(torch.randn(4, 9),))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_without_values_is_planned_and_not_measured() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(64, 64).eval(), torch.ones(4, 64)
    assert amprewrite.inspect(model, args=(x,)).cost.casts == 2
    converted = amprewrite.convert(model, args=(x,))
    assert converted.weight.dtype == torch.bfloat16
    message = refusal(
        errors.UnsupportedError, model, args=(x,), placement="optimal", tolerance=1e-2
    )
    assert "tolerance runs the model, and weight has no values" in message
    with pytest.raises(errors.UnsupportedError, match="verify runs the model"):
        amprewrite.verify(model, converted, (x,))


def test_a_plan_takes_no_overrides() -> None:
    model, args = a_model(), (an_input(),)
    plan = amprewrite.inspect(model, args=args)
    rules = [{"path": "0", "class": "deny"}]
    message = refusal(
        errors.UnsupportedError, model, args=args, plan=plan, overrides=rules
    )
    assert "plan= is applied as it is, so that it takes no overrides" in message
    assert "inspect()" in message

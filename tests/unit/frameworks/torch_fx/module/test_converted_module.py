"""Calling a converted module; its modes, copies and state."""

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import PlanMismatchError, UnsupportedError
from amprewrite.frameworks.torch_fx.module.signature import Signature
from tests.torch_programs import LOW


class Pair(nn.Module):
    """Two inputs, the second optional, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Any, y: Any = None, *, scale: float = 2.0) -> Any:
        h = self.a(x) * scale
        return h if y is None else h + y


def inputs() -> tuple[Any, Any]:
    return torch.randn(4, 8), torch.randn(4, 8)


def converted(*args: Any, **kwargs: Any) -> Any:
    return amprewrite.convert(Pair().eval(), args=args, kwargs=kwargs)


@pytest.mark.parametrize("keywords", [(), ("y",), ("y", "x")])
@pytest.mark.parametrize("called", [(), ("y",), ("x", "y")])
def test_arguments_may_be_given_by_position_or_name(
    keywords: tuple[str, ...], called: tuple[str, ...]
) -> None:
    x, y = inputs()
    values = {"x": x, "y": y}

    def split(names: tuple[str, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional = tuple(v for name, v in values.items() if name not in names)
        return positional, {name: values[name] for name in names}

    args, kwargs = split(keywords)
    program = converted(*args, **kwargs)
    expected = program(*args, **kwargs)
    args, kwargs = split(called)
    assert torch.equal(program(*args, **kwargs), expected)


def arrange(*args: Any, **kwargs: Any) -> Any:
    signature = Signature(("x", "y"), 1, ("scale",), ())
    return signature.arrange(args, kwargs)


def test_arguments_are_split_as_at_capture() -> None:
    assert arrange(1, scale=2) == arrange(scale=2, x=1) == ((1,), {"scale": 2})


@pytest.mark.parametrize(
    ("args", "kwargs", "have"),
    [
        ((), {}, "nothing"),
        ((1,), {}, "x"),
        ((1, 2), {"scale": 3}, "x, y, scale"),
        ((1, 2, 3), {}, "x, y, argument 2"),
        ((1,), {"scale": 3, "z": 4}, "x, scale, z"),
    ],
)
def test_other_arguments_are_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], have: str
) -> None:
    with pytest.raises(TypeError) as caught:
        arrange(*args, **kwargs)
    message = f"called with ({have}); it was captured with (x, scale); pass these"
    assert message in str(caught.value)


def test_an_argument_given_twice_is_named() -> None:
    with pytest.raises(TypeError, match="two values for x"):
        arrange(1, x=2, scale=3)


def test_arguments_without_names_keep_their_places() -> None:
    signature = Signature((), 2, ("flag",), ())
    assert signature.arrange((1, 2), {"flag": 3}) == ((1, 2), {"flag": 3})
    with pytest.raises(TypeError, match=r"\(argument 0, flag\); it was captured with"):
        signature.arrange((1,), {"flag": 3})


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [((5, 8), None, "f32[5,8]"), ((8,), None, "f32[8]"), ((4, 8), "half", "f16[4,8]")],
)
def test_another_tensor_than_at_capture_is_refused(
    shape: tuple[int, ...], dtype: str | None, found: str
) -> None:
    x, _ = inputs()
    program = amprewrite.convert(torch.export.export(Pair().eval(), (x,)))
    other = torch.randn(shape).to(getattr(torch, dtype) if dtype else torch.float32)
    with pytest.raises(PlanMismatchError) as caught:
        program(other)
    assert f"input 0 is {found}; the program was captured for f32[4,8]" in str(
        caught.value
    )


def test_extents_that_vary_are_not_compared() -> None:
    x, _ = inputs()
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}}
    exported = torch.export.export(Pair().eval(), (x,), dynamic_shapes=shapes)
    program = amprewrite.convert(exported)
    assert program(torch.randn(9, 8)).shape == (9, 8)
    with pytest.raises(PlanMismatchError, match=r"captured for f32\[any,8\]"):
        program(torch.randn(9, 7))


@pytest.mark.parametrize("training", [True, False])
def test_asking_for_the_mode_of_the_capture_changes_nothing(*, training: bool) -> None:
    x, _ = inputs()
    program = amprewrite.convert(Pair().train(training), args=(x,))
    assert program.training is training
    assert program.train(training) is program


def test_a_module_converted_for_inference_refuses_train_mode() -> None:
    x, _ = inputs()
    program = amprewrite.convert(Pair().eval(), args=(x,))
    with pytest.raises(UnsupportedError, match="converted for inference in eval mode"):
        program.train()


def test_a_module_converted_for_training_keeps_both_programs() -> None:
    x, _ = inputs()
    program = amprewrite.convert(Pair().train(), args=(x,))
    first = program.plan
    program.eval()(x)
    second = program.plan
    assert program.train().plan is first
    assert program.eval().plan is second


def test_the_other_mode_is_captured_inside_what_is_compiled() -> None:
    torch.compiler.reset()
    x, _ = inputs()
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    program = amprewrite.convert(model, args=(x,))
    run: Any = torch.compile(program, backend="eager")
    assert int((run(x) == 0).sum()) > 0
    expected = amprewrite.convert(model, args=(x,), training=True).eval()(x)
    program.eval()
    assert torch.equal(run(x), expected)
    assert torch.equal(run(x), expected)
    program.train()
    assert int((run(x) == 0).sum()) > 0


def test_a_copy_computes_the_same_and_shares_nothing() -> None:
    x, _ = inputs()
    program = converted(x)
    expected = program(x)
    twin = copy.deepcopy(program)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        twin.get_parameter("a.weight").zero_()
    assert torch.equal(program(x), expected)
    assert not torch.equal(twin(x), expected)
    assert twin.plan == program.plan


def test_the_state_is_saved_and_loaded() -> None:
    x, _ = inputs()
    program = converted(x)
    file = io.BytesIO()
    torch.save(program.state_dict(), file)
    file.seek(0)
    other = converted(x)
    assert not torch.equal(other(x), program(x))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), program(x))


def test_a_full_checkpoint_loads_into_low_weights() -> None:
    x, _ = inputs()
    model = Pair().eval()
    expected = amprewrite.convert(model, args=(x,))
    program = converted(x)
    program.load_state_dict(model.state_dict())
    assert program.get_parameter("a.weight").dtype == LOW
    assert torch.equal(program(x), expected(x))


def test_casts_and_plan_are_at_hand() -> None:
    x, _ = inputs()
    program = converted(x)
    assert program.casts == program.plan.casts
    assert "policy bf16" in repr(program)

"""Capture of programs inside of an export, and of transforms of torch.func."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, grad, hessian, vmap

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    CaptureError,
    NotCapturedError,
    PlanMismatchError,
    UnsupportedError,
)
from tests.torch_programs import relative_error

X = torch.linspace(-1, 1, 16).reshape(2, 8)
MORE = torch.linspace(-2, 1, 40).reshape(5, 8)
BATCH = ({0: Dim("batch", min=2)},)


class Mean(nn.Module):
    """A model whose program has the extent of the batch in it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("shift", torch.linspace(0, 1, width))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return (self.inner(x) + self.shift).sum(0) / x.shape[0] * scale


class Around(nn.Module):
    """A model that computes what a converted one gets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x * 2, scale=2.0) + 1


class Branches(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as nn.Linear
        return super().forward(input) * 2 if input.sum() > 0 else input


def exported(model: Any, x: Tensor, shapes: Any = None) -> Any:
    return torch.export.export(model, (x,), dynamic_shapes=shapes, strict=False)


def casts(program: Any) -> int:
    return sum(torch.bfloat16 in node.args for node in program.graph.nodes)


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("shapes", [None, BATCH])
@pytest.mark.parametrize("train", [False, True])
def test_a_model_without_args_is_exported_as_it_runs(
    *, called: bool, shapes: Any, train: bool
) -> None:
    model = Mean().train(train)
    made: Any = amprewrite.convert(model)
    if called:
        made(X)
    held = {k: id(v) for k, v in made.state_dict(keep_vars=True).items()}
    plans = len(made.plans)
    program = exported(made, X, shapes)
    assert casts(program) == 3  # the input, the weight, the bias
    assert set(program.state_dict) == set(model.state_dict())
    assert {k: id(v) for k, v in made.state_dict(keep_vars=True).items()} == held
    assert len(made.plans) == plans
    x = X if shapes is None else MORE
    assert torch.equal(program.module()(x), made(x))
    assert relative_error(program.module()(x), model(x)) < 1e-2


@pytest.mark.parametrize("training", [False, True])
def test_another_shape_is_captured_for_its_export(*, training: bool) -> None:
    """The first program divides by 2; exported for 5 rows, it was 2.5 times as much."""
    model = Mean().train(training)
    made: Any = amprewrite.convert(model, args=(X,))
    dtypes = {name: held.dtype for name, held in made.state_dict().items()}
    program = exported(made, MORE)
    assert relative_error(program.module()(MORE), model(MORE)) < 1e-2
    assert {name: held.dtype for name, held in made.state_dict().items()} == dtypes
    assert torch.equal(program.module()(MORE), made(MORE))
    assert relative_error(made(X), model(X)) < 1e-2


@pytest.mark.parametrize("args", [None, (X,)])
@pytest.mark.parametrize("shapes", [None, BATCH])
def test_arguments_that_the_export_computes_have_stand_ins(
    args: Any, shapes: Any
) -> None:
    model = Mean().eval()
    around = Around(amprewrite.convert(model, args=args)).eval()
    program = exported(around, MORE, shapes)
    assert casts(program)
    x = MORE if shapes is None else X
    assert relative_error(program.module()(x), Around(model)(x)) < 1e-2


def test_what_dynamo_alone_captures_is_refused() -> None:
    made = amprewrite.convert(Branches(8, 8).eval())
    made(X + 2)
    with pytest.raises(CaptureError, match="needs the converted model as one graph"):
        exported(made, X)


def test_a_tolerance_is_not_measured_on_stand_ins() -> None:
    model = Mean(256).eval()
    x = torch.linspace(-1, 1, 64 * 256).reshape(64, 256)
    made: Any = amprewrite.convert(model, args=(x,), tolerance=0.1)
    with pytest.raises(NotCapturedError, match="tolerance cannot be measured"):
        exported(Around(made), x)
    made(x, scale=2.0)
    program = exported(Around(made), x)
    assert casts(program)
    assert torch.equal(program.module()(x), Around(made)(x))


def test_dynamo_is_told_to_leave_an_export_to_the_tracer() -> None:
    made = amprewrite.convert(Mean().eval())
    with pytest.raises(Exception, match="Observed exception") as raised:
        torch.export.export(made, (X,), strict=True)
    assert UnsupportedError.__name__ in str(raised.value)


def test_tensors_that_are_not_those_of_the_model_are_refused() -> None:
    made: Any = amprewrite.convert(Mean().eval())
    values = {name: held + 1 for name, held in made.state_dict().items()}

    class Replaced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def forward(self, x: Tensor) -> Tensor:
            more = {name: held * 1 for name, held in values.items()}
            return torch.func.functional_call(made, more, (x,))

    with pytest.raises(NotCapturedError, match="with tensors without values"):
        exported(Replaced(), X)


def test_a_program_of_fewer_extents_is_refused() -> None:
    model = torch.export.export(Mean().eval(), (X,))
    made = amprewrite.convert(model)
    assert torch.equal(exported(made, X).module()(X), made(X))
    for other in (lambda: exported(made, MORE), lambda: exported(made, X, (BATCH,))):
        with pytest.raises(PlanMismatchError, match="captured for other inputs"):
            other()


class Softplus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.softplus(self.first(x)))


def per_sample(model: nn.Module) -> Any:
    def loss(parameters: Any, x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).square().sum()

    held = {name: p.detach().float() for name, p in model.named_parameters()}
    return vmap(grad(loss), in_dims=(None, 0))(held, MORE)


def ensemble(model: nn.Module) -> Any:
    held = {name: p.detach().float() for name, p in model.named_parameters()}
    stacked = {name: torch.stack([p, p * 2]) for name, p in held.items()}
    return vmap(lambda one: functional_call(model, one, (MORE,)))(stacked)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "transformed",
    [
        lambda model: vmap(model)(MORE),
        lambda model: vmap(model, in_dims=1, out_dims=1)(torch.stack([MORE, -MORE], 1)),
        lambda model: hessian(lambda x: model(x).sum())(MORE[0]),
        lambda model: functional_call(
            model, {n: p.detach() for n, p in model.named_parameters()}, (MORE,)
        ),
        per_sample,
        ensemble,
    ],
)
def test_a_call_of_another_shape_is_captured_beside_a_transform(
    transformed: Any, *, training: bool, recwarn: pytest.WarningsRecorder
) -> None:
    torch.manual_seed(0)
    model = Softplus().train(training)
    made: Any = amprewrite.convert(model, args=(X,))
    dtypes = {name: held.dtype for name, held in made.state_dict().items()}
    assert relative_error(transformed(made), transformed(model)) < 3e-2
    assert len(made.plans) == 2
    assert made.plan.captured == "captured by torch.export"
    assert made.plan.lowered
    assert {name: held.dtype for name, held in made.state_dict().items()} == dtypes
    assert relative_error(made(X), model(X)) < 1e-2
    assert [w for w in recwarn if isinstance(w.message, AmpWarning)] == []

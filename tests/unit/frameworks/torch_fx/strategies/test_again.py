"""Capture further programs of a converted model, at the calls that need them."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.errors import AmpWarning, UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.strategies.again import Captures
from tests.torch_programs import Program

X = torch.linspace(-1, 1, 12).reshape(3, 4)
ROWS = {"x": {0: torch.export.Dim.AUTO}}
REQUEST = Request(planner("bf16"), (X,))


@dataclass
class Cache:
    """An argument with state, which is a pytree."""

    keys: Tensor


torch.export.register_dataclass(Cache)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Branches(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > -100 else x


class Fixed(Model):
    """It refuses to be captured with an extent that varies."""

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x.shape[0], int):
            raise TypeError("no symbols here")
        return self.inner(x)


def conversion(
    model: Any,
    *args: Any,
    request: Request = REQUEST,
    dynamic_shapes: Any = None,
    keeps: bool = False,
    **fields: Any,
) -> Conversion:
    asked = replace(
        request,
        args=args or (X,),
        kwargs={},
        dynamic_shapes=dynamic_shapes,
        training=keeps,
    )
    return Conversion(model.eval(), asked, owned=True, **fields)


def test_extents_that_vary_are_tried_first() -> None:
    capture = Captures(REQUEST)
    program = capture(conversion(Model(), dynamic_shapes=ROWS))
    assert program.plan.captured == "captured by torch.export"
    assert program.takes((torch.ones(9, 4),), {})
    assert not capture(conversion(Model())).takes((torch.ones(9, 4),), {})


def test_export_without_varying_extents_is_next() -> None:
    program = Captures(REQUEST)(conversion(Fixed(), dynamic_shapes=ROWS))
    assert program.plan.captured == "captured by torch.export"
    assert not program.takes((torch.ones(9, 4),), {})


def test_dynamo_is_last_and_says_the_first_reason() -> None:
    model = Branches()
    program = Captures(REQUEST)(conversion(model, dynamic_shapes=ROWS))
    assert isinstance(program, LazyModule)
    assert program.plans == (), "it is captured as it is called"
    program(X)
    assert "(dynamo): Branches cannot be captured by torch" in program.plan.captured
    assert program.model is model, "it may keep the tensors"


def test_an_object_with_state_goes_to_dynamo_at_once() -> None:
    calls: list[Any] = []

    def caches(m: Any, x: Tensor, cache: Cache) -> Tensor:
        calls.append(x)
        cache.keys = m.a(x)
        return cache.keys * 2

    model, cache = Program(caches, a=nn.Linear(4, 4)), Cache(X)
    program = Captures(REQUEST)(conversion(model, X, cache))
    assert not calls, "no export runs the model"
    found = program(X, cache)
    assert torch.equal(cache.keys * 2, found)
    assert "an argument is a Cache, whose attributes the" in program.plan.captured


def test_lists_tuples_and_dicts_are_exported() -> None:
    model = Program(lambda m, x: m.a(x["a"][0][0]), a=nn.Linear(4, 4))
    program = Captures(REQUEST)(conversion(model, {"a": [(X,)]}))
    assert program.plan.captured == "captured by torch.export"


@pytest.fixture
def full() -> amprewrite.Plan:
    """A plan that keeps the layer full, unlike the policy, and so has no casts."""
    overrides = [{"path": "inner", "class": "deny"}]
    return amprewrite.inspect(Model().eval(), args=(X,), overrides=overrides)


def test_a_given_plan_is_applied_where_it_fits(full: amprewrite.Plan) -> None:
    request = replace(REQUEST, plan=full)
    capture = Captures(request)
    assert not capture(
        conversion(Model(), torch.ones(5, 4), request=request)
    ).plan.casts

    class Other(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).relu()

    assert capture(conversion(Other(), request=request)).plan.casts


def test_the_plan_of_other_extents_counts_only_under_a_tolerance(
    full: amprewrite.Plan,
) -> None:
    assert Captures(REQUEST)(conversion(Model(), like=full)).plan.casts
    budget: Any = object()  # it is not asked for
    request = replace(REQUEST, budget=budget)
    assert not Captures(request)(
        conversion(Model(), request=request, like=full)
    ).plan.casts


@pytest.mark.parametrize("trains", [False, True])
def test_weights_are_stored_as_the_conversion_says(*, trains: bool) -> None:
    program: Any = Captures(REQUEST)(conversion(Model(), keeps=trains))
    low = torch.float32 if trains else torch.bfloat16
    assert program.get_parameter("inner.weight").dtype == low


def test_a_program_of_a_part_has_its_path() -> None:
    plain = conversion(nn.Linear(4, 4))
    program = Captures(REQUEST)(replace(plain, path="layers.0"))
    assert program.path == "layers.0"
    (decision,) = [d for d in program.plan.decisions if d.canonical == "linear"]
    assert decision.path == "layers.0"


def test_warnings_of_the_whole_model_are_given_for_its_first_program_alone() -> None:
    unused = {"path": "absent", "class": "deny"}
    request = replace(REQUEST, planner=planner("bf16", overrides=[unused]))
    for model in (Model(), nn.ReLU()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Captures(request)(conversion(model, request=request))
        with pytest.warns(AmpWarning) as told:
            Captures(request)(conversion(model, request=request, first=True))
        assert any("unused rule" in str(w.message) for w in told)
    assert any("rewritten 0 " in str(w.message) for w in told)


def test_other_warnings_are_given_once_for_all_programs() -> None:
    request = replace(REQUEST, planner=planner("fp16"))
    model = Program(lambda m, x: m.a(x).exp().sum(), a=nn.Linear(4, 4))
    capture = Captures(request)
    with warnings.catch_warnings(record=True) as first:
        warnings.simplefilter("always")
        capture(conversion(model, request=request))
    with warnings.catch_warnings(record=True) as second:
        warnings.simplefilter("always")
        capture(conversion(model, torch.ones(5, 4), request=request))
    assert first
    assert not second


def test_errors_of_the_request_are_raised() -> None:
    """A tolerance needs one graph."""
    budget: Any = object()  # it is not asked for
    request = replace(REQUEST, budget=budget)
    with pytest.raises(UnsupportedError, match="cannot be captured by"):
        Captures(request)(conversion(Branches(), request=request))

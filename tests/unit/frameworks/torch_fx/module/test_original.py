"""What a converted module keeps of its model."""

import pytest

torch = pytest.importorskip("torch")

from functools import partial
from typing import Any

from torch import nn

from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.original import keep_origin
from tests.torch_programs import Program


def kept(model: nn.Module, *, shared: bool) -> Any:
    converted = ConvertedModule()
    keep_origin(converted, model, shared=shared)
    return vars(converted)["_origin"]


def test_a_skeleton_has_no_values() -> None:
    model = nn.BatchNorm1d(4)
    origin = kept(model, shared=False)
    assert type(origin.model) is nn.BatchNorm1d
    assert origin.model is not model
    assert all(t.is_meta for t in origin.model.state_dict().values())
    assert isinstance(origin.model.weight, nn.Parameter)


def test_a_shared_model_is_held_itself() -> None:
    model = nn.Linear(2, 2)
    assert kept(model, shared=True).model is model


def test_functions_around_parts_are_found_in_partials_hooks_and_defaults() -> None:
    wraps: tuple[Any, ...] = (
        lambda part: partial(lambda x: part(x).relu()),
        lambda part: lambda x, held=part: held(x),
    )
    for wrap in wraps:
        part: Any = nn.Linear(2, 2)
        program: Any = Program(lambda m, x: m.a(x), a=part)
        program.taken = wrap(part)
        origin = kept(program, shared=False)
        assert origin.model is None
        assert "taken of Program is a function" in origin.reason
    model: Any = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: model.bias)
    assert "_forward_hooks of Linear" in kept(model, shared=False).reason

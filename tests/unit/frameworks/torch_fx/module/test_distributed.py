"""Wrapped models, sharded parts, and tensors that are lent."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module.distributed import (
    Place,
    gathered_otherwise,
    inputs_as_captured,
    lent,
    places,
    read_as_captured,
    refuse_wrapped,
)
from tests.torch_group import group_of_one

X = torch.ones(4, 8)


class Tied(nn.Module):
    """One layer under two names, and two buffers, one of them hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = self.a
        self.register_buffer("shift", torch.ones(8))
        self.register_buffer("hidden", torch.ones(8), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x) + self.shift) * self.hidden


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))).train()


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.mark.parametrize("args", [None, (X,)], ids=["late", "at once"])
def test_what_ddp_wraps_is_refused(args: Any) -> None:
    wrapped = DistributedDataParallel(network())
    with pytest.raises(UnsupportedError, match=r"it is wrapped .*Parallel\(converted"):
        amprewrite.convert(wrapped, args=args)


def test_a_plan_of_what_is_wrapped_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="it is wrapped"):
        amprewrite.inspect(fully_shard(network()), args=(X,))


@pytest.mark.parametrize("args", [None, (X,)], ids=["late", "at once"])
def test_a_model_with_a_sharded_part_is_refused(args: Any) -> None:
    model = network()
    fully_shard(model[1][0])
    text = r"its part 1\.0 is wrapped .*FSDPLinear.*fully_shard\(converted\)"
    with pytest.raises(UnsupportedError, match=text):
        amprewrite.convert(model, args=args)


def test_plain_and_converted_models_are_not_refused() -> None:
    refuse_wrapped(network())
    refuse_wrapped(amprewrite.convert(network(), args=(X,)))


@pytest.mark.parametrize("args", [None, (X,)], ids=["late", "at once"])
def test_parts_sharded_after_the_conversion_are_refused(args: Any) -> None:
    converted: Any = amprewrite.convert(network(), args=args)
    converted(X)
    fully_shard(converted.get_submodule("1.0"))
    with pytest.raises(UnsupportedError, match=r"part 1\.0 of a converted module"):
        converted(X)


@pytest.mark.parametrize("args", [None, (X,)], ids=["late", "at once"])
def test_a_whole_converted_module_is_sharded(args: Any) -> None:
    expected = amprewrite.convert(network(), args=(X,))(X)
    converted = fully_shard(amprewrite.convert(network(), args=args))
    assert torch.equal(converted(X), expected)


def test_a_sharded_module_is_captured_again_with_its_own_tensors() -> None:
    model = network()
    converted: Any = fully_shard(amprewrite.convert(model, args=(X,)))
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.1)
    converted(X).sum().backward()
    optimizer.step()
    stepped = network()
    stepped(X).sum().backward()
    torch.optim.SGD(stepped.parameters(), lr=0.1).step()
    found = converted.eval()(X)
    torch.testing.assert_close(found, stepped(X), rtol=2e-2, atol=2e-2)
    assert not torch.allclose(found, model(X), rtol=2e-2, atol=2e-2)
    assert converted.train()(X).requires_grad


def test_a_module_built_without_memory_is_captured_again() -> None:
    with torch.device("meta"):
        model, x = Tied().train(), torch.empty(4, 8)
    converted: Any = amprewrite.convert(model, args=(x,))
    converted.to_empty(device="cpu")
    source = Tied()
    converted.load_state_dict(source.state_dict())
    converted.get_buffer("hidden").fill_(1)
    expected = amprewrite.convert(source, args=(X,), training=True)(X)
    assert torch.equal(converted(X), expected)
    assert torch.equal(converted.eval()(X), expected)
    assert model.a.weight.is_meta


def test_lent_tensors_are_given_back() -> None:
    model, owner = Tied(), Tied()
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    with lent(model, owner):
        assert model.a.weight is owner.a.weight
        assert model.hidden is owner.hidden
    now = dict(model.named_parameters()) | dict(model.named_buffers())
    assert now.keys() == held.keys()
    assert all(now[name] is held[name] for name in held)


LOW = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def with_norm() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).train()


def held_as_bfloat16(model: Any, name: str) -> Any:
    """Return where ``model`` keeps a parameter that was gathered in bfloat16."""
    path, _, last = name.rpartition(".")
    kept = model.get_submodule(path)._parameters
    kept[last] = nn.Parameter(kept[last].detach().bfloat16())
    return kept


def test_a_program_casts_what_it_reads_low_by_itself() -> None:
    converted: Any = amprewrite.convert(with_norm(), args=(X,))
    known = places(converted, converted.rewritten.graph)
    cast = {p.held.shape: p.cast for p in known if p.held.dim() == 2}
    assert cast == {(8, 8): True, (2, 8): True}
    assert [p.cast for p in known if p.kept is converted.get_submodule("1")._parameters]
    assert not any(
        p.cast for p in known if p.kept is converted.get_submodule("1")._parameters
    )
    assert {p.dtype for p in known} == {torch.float32}
    assert gathered_otherwise(known) == []
    twin = copy.deepcopy(converted)
    kept = [place.kept for place in places(twin, twin.rewritten.graph)]
    assert kept[0] is twin.get_submodule("0")._parameters
    assert kept[0] is not converted.get_submodule("0")._parameters


def test_gathered_parameters_are_read_as_captured() -> None:
    model = Tied()
    kept = held_as_bfloat16(model, "a.weight")
    low, bias = kept["weight"], kept["bias"]
    known = [Place(kept, n, torch.float32, cast=n == "bias") for n in ("weight",) * 2]
    changed = gathered_otherwise(known)
    assert changed == known
    with read_as_captured(changed):
        assert kept["weight"].dtype == torch.float32
        kept["weight"].sum().backward()
    assert kept["weight"] is low
    assert low.grad.dtype == torch.bfloat16
    assert kept["bias"] is bias
    known = [Place(kept, "weight", torch.float32, cast=True)]
    with read_as_captured(known):
        assert kept["weight"] is low
    with read_as_captured(known, copied=True):
        assert kept["weight"].is_leaf
        assert kept["weight"].dtype == torch.float32


def test_inputs_of_a_capture_are_cast_as_the_parameters_were() -> None:
    low = nn.Parameter(X.bfloat16())
    known = [Place({"weight": low}, "weight", torch.float32, cast=True)]
    arguments = ((X.bfloat16(), X.int(), "word"), {"y": X.double()})
    (x, whole, word), named = inputs_as_captured(arguments, known)
    assert x.dtype == torch.float32
    assert (whole.dtype, word, named["y"].dtype) == (torch.int32, "word", torch.float64)


@pytest.mark.parametrize("inputs", [True, False])
def test_parameters_may_be_gathered_in_bfloat16(*, inputs: bool) -> None:
    """Weights that are read low come as they are read; others are rounded once."""
    rounded = with_norm()
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if name.startswith("1."):
                parameter.copy_(parameter.bfloat16().float())
    expected = amprewrite.convert(rounded, args=(X,))
    policy = MixedPrecisionPolicy(torch.bfloat16, cast_forward_inputs=inputs)
    sharded: Any = fully_shard(
        amprewrite.convert(with_norm(), args=(X,)), mp_policy=policy
    )
    found = sharded(X)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected(X))
    found.square().mean().backward()
    expected(X).square().mean().backward()
    pairs = zip(sharded.parameters(), rounded.parameters(), strict=True)
    for one, other in pairs:
        assert one.dtype == one.grad.dtype == torch.float32
        torch.testing.assert_close(
            one.grad.full_tensor(), other.grad, rtol=2**-7, atol=1e-3
        )
    assert torch.equal(sharded.eval()(X), expected(X))
    assert sharded.plan.casts


def test_a_capture_of_what_was_gathered_in_bfloat16_is_refused() -> None:
    converted: Any = fully_shard(amprewrite.convert(with_norm()), mp_policy=LOW)
    message = (
        r"parameter 0\.weight is gathered as bfloat16.* was float32 .*leave param_"
    )
    with pytest.raises(UnsupportedError, match=message):
        converted(X)

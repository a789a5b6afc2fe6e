"""Wrapped models, sharded parts, and tensors that are lent."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the skip
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import amprewrite  # noqa: E402
from amprewrite.errors import UnsupportedError  # noqa: E402
from amprewrite.frameworks.torch_fx.parallel import lent, refuse_wrapped  # noqa: E402
from tests.torch_group import group_of_one  # noqa: E402

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

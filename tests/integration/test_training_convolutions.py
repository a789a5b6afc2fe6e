"""Training steps of convolutions with batch norm: bytes and errors of autocast."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from tests.torch_programs import relative_error

WIDTH = 16


def conv(inside: int, out: int = WIDTH, size: int = 3) -> Any:
    return nn.Conv2d(inside, out, size, padding=size // 2, bias=False)


class Residual(nn.Module):
    """Two convolutions, each with its norm, beside a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = conv(WIDTH), nn.BatchNorm2d(WIDTH)
        self.two, self.last = conv(WIDTH), nn.BatchNorm2d(WIDTH)

    def forward(self, x: Any) -> Any:
        return F.relu(self.last(self.two(F.relu(self.norm(self.one(x))))) + x)


class Normed(nn.Module):
    """A norm before a convolution; the stream is never normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(WIDTH), conv(WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.conv(F.relu(self.norm(x)))


class Dense(nn.Module):
    """A block that reads all results before it."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        width = blocks * WIDTH
        self.norm, self.conv = nn.BatchNorm2d(width), conv(width)

    def forward(self, x: Any) -> Any:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


def head(width: int = WIDTH) -> list[Any]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


BODIES = {
    "residual": lambda: [Residual(), Residual(), *head()],
    "norm first": lambda: [Normed(), Normed(), nn.BatchNorm2d(WIDTH), *head()],
    "dense": lambda: [Dense(1), Dense(2), nn.BatchNorm2d(3 * WIDTH), *head(3 * WIDTH)],
    "instance norm": lambda: [
        nn.InstanceNorm2d(WIDTH, affine=True, track_running_stats=True),
        nn.SiLU(),
        conv(WIDTH),
        *head(),
    ],
}


def model(body: str) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(conv(3), *BODIES[body]()).train()


def images() -> Any:
    return torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def step(model: Any, x: Any, *, autocast: bool = False) -> tuple[int, Any]:
    """Return the bytes kept for the backward pass, and all gradients in a row."""
    kept: dict[int, Any] = {}
    own = {t.untyped_storage().data_ptr() for t in (x, *model.parameters())}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(x)
        loss = F.cross_entropy(out.to(x.dtype), torch.arange(4))
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    found = torch.autograd.grad(loss, [*model.parameters()])
    return size, torch.cat([gradient.flatten().double() for gradient in found])


@pytest.mark.parametrize("body", BODIES)
def test_a_step_keeps_autocasts_bytes_at_its_error(body: str) -> None:
    plain, x = model(body), images()
    _, exact = step(copy.deepcopy(plain).double(), x.double())
    cast_bytes, cast = step(copy.deepcopy(plain), x, autocast=True)
    converted = amprewrite.convert(plain, args=(x,))
    size, found = step(converted, x)
    assert size <= cast_bytes
    assert relative_error(found, exact) <= 1.01 * relative_error(cast, exact)
    norms = [d for d in converted.plan.decisions if d.op_class == "accumulate"]
    reads = [d.operands for d in norms if len(d.operands) > 1]
    assert reads
    assert {operands[0] for operands in reads} == {"bfloat16"}
    assert {dtype for operands in reads for dtype in operands[1:]} == {"float32"}
    for name, buffer in converted.named_buffers():
        assert buffer.dtype != torch.bfloat16, name


def test_running_statistics_are_those_of_float32_on_the_same_input() -> None:
    torch.manual_seed(0)
    plain: Any = nn.Sequential(conv(3, WIDTH), nn.BatchNorm2d(WIDTH)).train()
    x = images()
    converted = amprewrite.convert(copy.deepcopy(plain), args=(x,))
    for _ in range(3):
        converted(x)
        low = F.conv2d(x.bfloat16(), plain[0].weight.bfloat16(), padding=1)
        plain[1](low.float())
    for name, wanted in plain[1].named_buffers():
        torch.testing.assert_close(converted.get_buffer(f"1.{name}"), wanted)


def test_the_optimal_placement_knows_the_price_of_a_low_norm() -> None:
    plan = amprewrite.inspect(model("residual"), args=(images(),), placement="optimal")
    norms = [d for d in plan.decisions if d.canonical == "batch_norm"]
    assert {d.precision for d in norms} == {"bfloat16"}
    between = {cast.value for cast in plan.runtime_casts} & {d.op for d in norms}
    assert not between
    assert plan.cost.total_bytes == plan.cost.lower_bound


def test_a_rule_keeps_the_norm_full() -> None:
    rule = {"op": "batch_norm", "class": "deny"}
    plan = amprewrite.inspect(model("residual"), args=(images(),), overrides=[rule])
    norms = [d for d in plan.decisions if d.canonical == "batch_norm"]
    assert {d.precision for d in norms} == {"float32"}

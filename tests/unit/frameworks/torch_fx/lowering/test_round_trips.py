"""Values that the plan rounds and that are read in full precision alone."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.simplify import (
    KEPT_FULL,
    remove_round_trips,
)
from tests.torch_programs import Program, relative_error

aten = torch.ops.aten
X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))


class Norm(nn.Module):
    """The norm of transformers' Llama: its weight reads what was rounded."""

    def __init__(self, narrow: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))
        self.narrow = narrow

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * self.narrow(wide, x)


FOLLOWING = (
    lambda wide, x: wide.to(x.dtype),
    lambda wide, x: wide.type_as(x),
)


def normed(narrow: Any = FOLLOWING[0]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), Norm(narrow), nn.Linear(16, 16)).eval()


def removed(made: Any) -> tuple[str, ...]:
    """Return the ops that were left out of a converted model, after its call."""
    records = [one for one in made.plan.lowerings if one.name == "round_trips"]
    assert all(one.what == KEPT_FULL for one in records)
    return tuple(op for one in records for op in one.ops)


def converted(forward: Any, *args: Any, **options: Any) -> Any:
    """Return a converted program that was called with ``args``."""
    model = Program(forward, linear=nn.Linear(16, 16)).eval()
    made = amprewrite.convert(model, args=args, **options)
    with torch.no_grad():
        made(*args)
    return made


@pytest.mark.parametrize("narrow", FOLLOWING)
def test_the_weight_of_a_norm_reads_what_was_not_rounded(narrow: Any) -> None:
    model = normed(narrow)
    made: Any = amprewrite.convert(model, args=(X,))
    plain: Any = amprewrite.convert(model, args=(X,), lowering=False)
    with torch.no_grad():
        wanted = normed(narrow).double()(X.double())
        errors = [relative_error(one(X), wanted) for one in (made, plain)]
    (op,) = removed(made)
    assert made.plan.by_op[op].op_class == "follow"
    assert made.plan.by_op[op].precision == "bfloat16"
    assert errors[0] < errors[1]


def test_a_rounding_that_the_model_pins_stays() -> None:
    def forward(self: Any, x: Any) -> Any:
        wide = self.linear(x).float().exp()
        return wide.to(torch.bfloat16) * wide, wide.bfloat16().float() + 1

    made = converted(forward, X)
    assert not removed(made)


def test_a_rounding_that_a_low_op_reads_too_stays() -> None:
    def forward(self: Any, x: Any) -> Any:
        low = self.linear(x)
        wide = low.float().exp().to(low.dtype)
        return wide * x, self.linear(wide)

    assert not removed(converted(forward, X))


class Values:
    """A graph of two inputs, with the first one rounded."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.x, self.other = map(self.graph.placeholder, ("x", "other"))
        for node in self.x, self.other:
            node.meta["val"] = X.clone()
        self.low = self(aten.to.dtype, self.x, torch.bfloat16)
        self.low.meta["amprewrite"] = "cast"

    def __call__(self, target: Any, *args: Any) -> Any:
        """Add an op to the graph."""
        node = self.graph.call_function(target, args)
        values = [a.meta["val"].clone() if hasattr(a, "meta") else a for a in args]
        node.meta["val"] = target(*values)
        return node

    def left_out(self, returned: Any) -> int:
        """Return how many ops are left out of the graph with that result."""
        self.graph.output(returned)
        found = remove_round_trips(self.graph)
        self.graph.lint()
        return sum(len(one.ops) for one in found)


def test_a_cast_back_is_left_out_with_the_cast() -> None:
    v = Values()
    total = v(aten.add.Tensor, v(aten.to.dtype, v.low, torch.float32), v.other)
    product = v(aten.mul.Tensor, v.low, v.other)
    assert v.left_out((total, product)) == 2
    assert total.args == product.args == (v.x, v.other)


READ_OTHERWISE = {
    "returned": lambda v: v(aten.to.dtype, v.low, torch.float32),
    "returned as a view": lambda v: v(
        aten.view.default, v(aten.to.dtype, v.low, torch.float32), [96]
    ),
    "returned low": lambda v: (v.low, v(aten.mul.Tensor, v.low, v.other)),
    "read by a low op": lambda v: v(aten.mul.Tensor, v.low, 2.0),
    "compared": lambda v: v(aten.lt.Tensor, v.low, v.other),
    "summed low": lambda v: v(aten.sum.dim_IntList, v.low, [0]),
    "read by an op in place": lambda v: v(aten.add_.Tensor, v.other, v.low),
    "written to": lambda v: (
        v(aten.mul_.Tensor, v.x, 2.0),
        v(aten.mul.Tensor, v.low, v.other),
    ),
    "perhaps written to": lambda v: (
        v(aten.mul_.Tensor, v.other, 2.0),  # the caller may give one tensor twice
        v(aten.mul.Tensor, v.low, v.other),
    ),
    "not read": lambda v: v.other,
}


@pytest.mark.parametrize("build", READ_OTHERWISE.values(), ids=READ_OTHERWISE)
def test_what_is_read_otherwise_stays(build: Any) -> None:
    v = Values()
    assert v.left_out(build(v)) == 0


class Gaps(nn.Module):
    """Takes roots of differences that are at least 0, of values that are rounded."""

    def __init__(self, twice: Any) -> None:
        super().__init__()
        self.linear, self.twice = nn.Linear(16, 16), twice
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        low = self.linear(x)
        wide = low.float() * 1.1
        top, each = self.twice(wide, low.dtype)
        gap = self.weight * top.amax(-1, keepdim=True) - self.weight * each
        return self.linear(gap.sqrt())


@pytest.mark.parametrize(
    "twice",
    [
        lambda wide, dtype: (wide.to(dtype), wide.to(dtype)),
        lambda wide, dtype: (wide.view(2, 3, 16).to(dtype).view(6, 16), wide.to(dtype)),
        lambda wide, dtype: (wide.to(torch.bfloat16), wide.to(dtype)),
        lambda wide, dtype: (wide.bfloat16().float(), wide.to(dtype)),
    ],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_value_is_rounded_for_all_readers_or_for_none(
    twice: Any, *, gradients: bool
) -> None:
    torch.manual_seed(0)
    made: Any = amprewrite.convert(Gaps(twice).eval(), args=(X,))
    with torch.set_grad_enabled(gradients):
        assert made(X).isfinite().all()
    assert not removed(made)


def test_a_returned_rounding_keeps_the_others_of_its_value() -> None:
    v = Values()
    again = v(aten.to.dtype, v.x, torch.bfloat16)
    again.meta["amprewrite"] = "cast"
    widened = v(aten.to.dtype, v.low, torch.float32)
    assert v.left_out((widened, v(aten.mul.Tensor, again, v.other))) == 0


def test_training_programs_keep_them() -> None:
    made: Any = amprewrite.convert(normed().train(), args=(X,))
    made(X).sum().backward()
    assert not removed(made)

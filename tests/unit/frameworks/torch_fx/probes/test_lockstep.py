from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

import amprewrite
from amprewrite.frameworks.torch_fx.comparison import compare
from amprewrite.frameworks.torch_fx.probes.lockstep import Again
from amprewrite.frameworks.torch_fx.probes.runner import floats, to_array
from amprewrite.measure.runs import Call, Held, OpSample

X = torch.randn(4, 16)


def samples(model, args=(X,), policy="bf16", **options) -> dict[str, OpSample]:
    """The samples of every op, by name."""
    converted = amprewrite.convert(model.eval(), policy, args=args, **options)
    found: dict[str, OpSample] = {}

    def observe(sample: OpSample) -> None:
        if sample.decision is None:  # not of a node that was inserted
            found[sample.op] = copied(sample)

    walked = compare.walk(model, converted, Call(args, {}), observe)
    assert walked.reference == "float64", walked.notes
    return found


def copied(sample: OpSample) -> OpSample:
    """A sample with arrays, which stay as they are when the program writes."""
    three = (sample.reference, sample.actual, sample.alone)
    reference, actual, alone = (tuple(map(np.array, values)) for values in three)
    return replace(sample, reference=reference, actual=actual, alone=alone)


def array(values: tuple[Held, ...]) -> NDArray[Any]:
    """The only one of copied values."""
    (held,) = values
    assert isinstance(held, np.ndarray)
    return held


class Function(nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run, self.linear = run, nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.run(self.linear, x)


def test_reference_values_are_those_of_float64():
    model = Function(lambda linear, x: torch.tanh(linear(x)))
    found = samples(model)
    wanted = model.double()(X.double()).detach().numpy()
    assert abs(found["tanh"].reference[0] - wanted).max() < 1e-14
    assert not found["linear"].exact


def test_actual_values_are_those_of_the_converted_program():
    model = Function(lambda linear, x: torch.tanh(linear(x)))
    converted = amprewrite.convert(model.eval(), args=(X,))
    found = samples(model)
    with torch.no_grad():
        assert (found["tanh"].actual[0] == converted(X).numpy()).all()


def test_an_op_is_run_alone_on_rounded_reference_operands():
    model = Function(lambda linear, x: linear(x))
    found = samples(model)["linear"]
    low = model.bfloat16()
    with torch.no_grad():
        wanted = low(X.bfloat16()).double().numpy()
    assert (found.alone[0] == wanted).all()


def test_data_movement_is_exact():
    model = Function(lambda linear, x: torch.relu(linear(x)).reshape(8, 8).mT)
    found = samples(model)
    assert {name for name, sample in found.items() if sample.exact} == {
        name for name in found if name != "linear"
    }
    assert len(found) >= 4


def test_views_are_not_run_again_and_other_moves_are():
    """A view has the same elements in both runs; a flip reads and writes them."""

    def run(linear, x):
        return linear(x).view(8, 8).mT.flip(0)

    found = samples(Function(run))
    again = {name: sample.again for name, sample in found.items() if sample.exact}
    assert {name for name, run in again.items() if run is None} == {"view", "m_t"}
    assert again["flip"] is not None


def test_writes_in_place_do_not_reach_the_other_run():
    def run(linear, x):
        y = linear(x)
        y.mul_(2).add_(1)
        return y.relu_() + y

    found = samples(Function(run))
    for sample in found.values():
        wanted = array(sample.reference)
        for found in (sample.actual, sample.alone):
            assert abs(array(found) - wanted).max() < 0.03 * abs(wanted).max()


def test_masks_that_the_program_saturates_are_saturated():
    lowest = torch.finfo(torch.float32).min

    def run(linear, x):
        mask = torch.full((4, 4), lowest).triu(1)
        y = linear(x).view(1, 1, 4, 16)
        return nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=mask)

    (sample,) = (
        sample
        for name, sample in samples(Function(run), policy="fp16").items()
        if name.startswith("scaled")
    )
    assert abs(array(sample.alone) - array(sample.reference)).max() < 0.01


def test_ops_in_a_no_grad_region_are_compared():
    def run(linear, x):
        with torch.no_grad():
            y = torch.tanh(linear(x))
        return torch.sigmoid(linear(y))

    names = list(samples(Function(run)))
    assert any(name.endswith(".tanh") for name in names)
    assert names[-1] == "sigmoid"


def test_checkpointed_ops_are_compared():
    def run(linear, x):
        return checkpoint(lambda y: torch.tanh(linear(y)), x, use_reentrant=False)

    assert any("tanh" in name for name in samples(Function(run)))


def test_dropout_draws_the_same_mask():
    model = Function(lambda linear, x: nn.functional.dropout(linear(x), 0.5))
    sample = samples(model)["dropout"]
    for other in (sample.actual, sample.alone):
        assert ((array(other) == 0) == (array(sample.reference) == 0)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "complex64"])
def test_any_float_becomes_float64(dtype):
    tensor = torch.tensor([1.0, -2.0]).to(getattr(torch, dtype))
    array = to_array(tensor)
    wanted = [[1, 0], [-2, 0]] if tensor.is_complex() else [1, -2]
    assert array.dtype == "float64"
    assert array.tolist() == wanted


def test_a_product_of_16_bits_is_computed_again_in_float32():
    model = Function(lambda linear, x: torch.tanh(linear(x)))
    converted = amprewrite.convert(model.eval(), args=(X,))
    found: dict[str, Any] = {}

    def observe(sample: OpSample) -> None:
        if isinstance(sample.again, Again):
            found[sample.op] = floats(sample.again.operands)

    compare.walk(model, converted, Call((X,), {}), observe)
    assert {x.dtype for x in found["linear"]} == {torch.float32}
    assert {x.dtype for x in found["tanh"]} == {torch.float64}

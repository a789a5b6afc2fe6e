"""Averages of weights (EMA, SWA), and weights that are written by hand."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import amprewrite
from amprewrite.errors import AmpWarning

X = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 4


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 4),
    )


def error(found: Any, expected: Any) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def near(found: Any, expected: Any) -> bool:
    """Return whether outputs differ, by no more than bfloat16 rounds."""
    return 1e-4 < error(found, expected) < 1e-2


@pytest.mark.parametrize("args", [None, (X,)])
def test_an_average_of_a_converted_model_computes_with_its_weights(args: Any) -> None:
    model = network().train()
    converted = amprewrite.convert(model, args=args)
    settings: Any = {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}
    average: Any = AveragedModel(converted, **settings)
    expected: Any = AveragedModel(copy.deepcopy(model), **settings)
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(converted(X), Y).backward()
        optimizer.step()
        average.update_parameters(converted)
        expected.update_parameters(model)
        with torch.no_grad():
            assert near(average.eval()(X), expected.eval()(X))
        converted.train()
    assert error(model.eval()(X), expected(X)) > 0.02  # another model by now
    batches = [X, X + 1]
    with pytest.warns(AmpWarning, match="captured no graph"):
        update_bn(batches, average)  # without a momentum it depends on data
    update_bn(batches, expected)
    for name in ("running_mean", "running_var"):
        ours, theirs = (getattr(m.module[1], name) for m in (average, expected))
        assert ours.dtype == torch.float32
        assert error(ours, theirs) < 1e-2
    assert average.module[1].momentum == 0.1
    assert int(average.module[1].num_batches_tracked) == len(batches)
    assert near(average.eval()(X), expected.eval()(X))


def loaded(model: Any) -> None:
    model.load_state_dict(
        {
            k: 1.5 * v if v.is_floating_point() else v
            for k, v in model.state_dict().items()
        }
    )


def scaled(model: Any) -> None:
    with torch.no_grad():
        for held in model.parameters():
            held.mul_(1.5)


def set_by_data(model: Any) -> None:
    for held in model.parameters():
        held.data = held.data * 1.5


def replaced(model: Any) -> None:
    model[4].weight = nn.Parameter(model[4].weight.detach() * 1.5)


WRITES = [loaded, scaled, set_by_data, replaced]


@pytest.fixture(scope="module", params=["train", "eval", "eval with args"])
def pair(request: pytest.FixtureRequest) -> Any:
    mode = request.param == "train"
    args = (X,) if "args" in request.param else None
    model = network().train(mode)
    converted = amprewrite.convert(model, args=args)
    converted(X)
    return converted, copy.deepcopy(model)


@pytest.mark.parametrize("write", WRITES)
def test_weights_that_are_written_to_are_used(pair: Any, write: Any) -> None:
    converted, expected = pair
    before = expected(X)
    write(converted)
    write(expected)
    assert near(converted(X), expected(X))
    assert error(before, expected(X)) > 0.02

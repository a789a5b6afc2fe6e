"""Metrics of torchmetrics beside a converted model, and as parts of it."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchmetrics = pytest.importorskip("torchmetrics")

from torch import nn

import amprewrite

BATCHES = (5, 7, 4)


class Model(nn.Module):
    """A classifier that keeps its metrics, as modules of Lightning do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.error = torchmetrics.MeanSquaredError()
        self.scores = torchmetrics.MetricCollection(
            {
                "top": torchmetrics.Accuracy(task="multiclass", num_classes=3),
                "cosine": torchmetrics.CosineSimilarity(reduction="mean"),
            }
        )

    def forward(self, x: Any) -> Any:
        return self.net(x)

    @torch.no_grad()
    def step(self, x: Any, y: Any) -> Any:
        """Return the outputs, and add their errors to the metrics."""
        found = self(x)
        self.error(found, y)
        self.scores["top"].update(found, y.argmax(1))
        self.scores["cosine"](found, y)
        return found


def batch(rows: int, seed: int) -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 8, generator=made)
    return x, torch.randn(rows, 3, generator=made)


@pytest.fixture(scope="module", params=["train", "eval"])
def converted(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return amprewrite.convert(Model().train(request.param == "train"))


def test_metrics_of_a_converted_model_add_up_in_full_precision(converted: Any) -> None:
    converted.to("cpu")  # metrics take other arguments there than modules
    for epoch in range(2):
        outside = Model()  # metrics that were never part of a converted model
        for number, rows in enumerate(BATCHES):
            x, y = batch(rows, 10 * epoch + number)
            found = converted.step(x, y)
            outside.error.update(found, y)
            outside.scores["top"].update(found, y.argmax(1))
            outside.scores["cosine"].update(found, y)
        for name in ("error", "scores"):
            ours, theirs = getattr(converted, name), getattr(outside, name)
            assert ours.compute() == theirs.compute()
            ours.reset()
        assert converted.error.sum_squared_error.dtype == torch.float32
    assert {d.precision for d in converted.plan.decisions if d.op_class == "allow"} == {
        "bfloat16"
    }


def test_a_copy_has_metrics_of_its_own(converted: Any) -> None:
    twin = copy.deepcopy(converted)
    converted.step(*batch(3, 1))
    assert int(twin.error.total) == 0
    assert int(converted.error.total) == 9
    assert int(amprewrite.original(converted).scores["top"].tp.sum()) <= 3
    converted.error.reset()
    converted.scores.reset()


def test_the_model_that_was_converted_keeps_its_metrics() -> None:
    model = Model().eval()
    model.error.update(torch.ones(2), torch.zeros(2))
    converted = amprewrite.convert(model, args=(torch.randn(2, 8),))
    converted.error.update(torch.ones(3), torch.zeros(3))
    assert int(model.error.total) == 2
    assert int(converted.error.total) == 5
    converted.error.reset()
    assert float(model.error.compute()) == 1

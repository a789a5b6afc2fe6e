"""Markers in a torch model reach the plan, however it is captured."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite


class Marked(nn.Module):
    """Asks for precision by a block, nested, and by a decorated method."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        with amprewrite.full_precision():
            x = self.a(x)
            with amprewrite.low_precision():
                x = torch.softmax(x, -1)
        return self.last(self.b(x))

    @amprewrite.full_precision
    def last(self, x):
        return self.head(x)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", ["export", "lazy"])
def test_the_plan_does_what_the_model_asks(way, training) -> None:
    model, x = Marked().train(training), torch.randn(4, 8)
    converted = amprewrite.convert(model, args=(x,) if way == "export" else None)
    assert converted(x).dtype == torch.float32
    found = [(d.canonical, d.op_class, d.precision) for d in converted.plan.decisions]
    assert found == [
        ("linear", "deny", "float32"),
        ("softmax", "allow", "bfloat16"),
        ("linear", "allow", "bfloat16"),
        ("linear", "deny", "float32"),
    ]
    asked = [d.why for d in converted.plan.decisions if d.rule == "marker"]
    assert asked[0] == "the model asks for full precision here"


def test_a_marked_model_runs_as_before_without_conversion() -> None:
    model, x = Marked(), torch.randn(4, 8)
    y = model(x)
    assert y.dtype == torch.float32
    assert torch.compile(model, backend="eager", fullgraph=True)(x).equal(y)

"""How a captured program is called, and which calls fit it."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import PlanMismatchError  # noqa: E402  # after the skip
from amprewrite.frameworks.torch_fx.signature import (  # noqa: E402
    Signature,
    signature_of,
)

X = torch.ones(2, 4)


class Program(torch.nn.Module):
    """A tensor, a number, and a word by name."""

    def forward(self, x, scale, *, mode="plain"):
        return x * scale if mode == "plain" else x


def signature() -> Signature:
    model = Program()
    program = torch.export.export(model, (X, 2.0), {"mode": "plain"})
    return signature_of(model, program.module(check_guards=False))


def test_arguments_are_split_as_at_capture() -> None:
    found = signature()
    assert found.arrange((X,), {"scale": 2.0, "mode": "plain"}) == (
        (X, 2.0),
        {"mode": "plain"},
    )
    with pytest.raises(TypeError, match="two values for scale"):
        found.arrange((X, 2.0), {"scale": 2.0, "mode": "plain"})
    with pytest.raises(TypeError, match=r"captured with \(x, scale, mode\)"):
        found.arrange((X,), {})


def test_other_dtypes_shapes_and_values_are_refused() -> None:
    found = signature()
    found.check((X, 2.0), {"mode": "plain"})
    with pytest.raises(PlanMismatchError, match=r"input 0 is f64\[2,4\].*f32\[2,4\]"):
        found.check((X.double(), 2.0), {"mode": "plain"})
    with pytest.raises(PlanMismatchError, match=r"input 0 is f32\[4,2\]"):
        found.check((X.T, 2.0), {"mode": "plain"})
    with pytest.raises(PlanMismatchError, match=r"input 1 is 3\.0.*captured for 2\.0"):
        found.check((X, 3.0), {"mode": "plain"})
    with pytest.raises(PlanMismatchError, match="called with 2 inputs"):
        found.check((X, 2.0), {})

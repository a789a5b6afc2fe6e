"""How a captured program is called, and which calls fit it."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import PlanMismatchError
from amprewrite.frameworks.torch_fx.module.distributed import Place
from amprewrite.frameworks.torch_fx.module.signature import (
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


def test_inputs_that_were_cast_with_the_parameters_are_cast_back() -> None:
    found, low = signature(), torch.nn.Parameter(X.bfloat16())
    given = (X.bfloat16(), 2.0), {"mode": "plain"}
    changed = [Place({"weight": low}, "weight", torch.float32, cast=True)]
    args, kwargs = found.as_captured(*given, changed)
    assert args[0].dtype == torch.float32
    assert (args[1], kwargs) == (2.0, {"mode": "plain"})
    args, _ = found.as_captured(*given, [])
    assert args is given[0]
    with pytest.raises(PlanMismatchError, match="input 0 is f64"):
        found.check(*found.as_captured((X.double(), 2.0), given[1], changed))


def test_nests_with_as_many_tensors_are_still_compared() -> None:
    class Nested(torch.nn.Module):
        def forward(self, pair):
            return pair[0]

    model = Nested()
    program = torch.export.export(model, ([X],)).module(check_guards=False)
    found = signature_of(model, program)
    found.check(([X],), {})
    with pytest.raises(PlanMismatchError, match=r"input 0 is f64"):
        found.check(([X.double()],), {})

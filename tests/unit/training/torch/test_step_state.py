"""The closure of a step."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import UnsupportedError
from amprewrite.training.torch.step_state import evaluated


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_called_once_with_gradients(*, by_name: bool):
    calls: list[bool] = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        return 3.0

    args, kwargs = ((), {"closure": closure}) if by_name else ((closure,), {})
    with torch.no_grad():
        loss, step = evaluated(optimizer(), args, kwargs)
    assert loss == 3.0
    assert step() is None
    assert calls == [True]


def test_without_a_closure_nothing_is_called():
    assert evaluated(optimizer(), (), {})[0] is None


def test_an_optimizer_that_calls_its_closure_often_is_refused():
    often = torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(UnsupportedError, match="LBFGS calls its closure several times"):
        evaluated(often, (lambda: 0.0,), {})

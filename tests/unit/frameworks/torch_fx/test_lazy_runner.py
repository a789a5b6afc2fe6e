"""Models that dynamo captures at their calls: arguments, settings, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError
from tests.torch_programs import Program, relative_error

X = torch.linspace(-1, 1, 32).reshape(4, 8)
CONVERTED = pytest.mark.parametrize("at_once", [False, True])


def model(function: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    return Program(function, inner=nn.Linear(8, 8)).eval()


def converted(plain: nn.Module, args: Any, *, at_once: bool) -> Any:
    return amprewrite.convert(plain, args=args if at_once else None)


@CONVERTED
def test_arrays_of_numpy_are_arguments_of_which_each_call_has_its_own(
    *, at_once: bool
) -> None:
    plain = model(lambda m, x, n: m.inner(x) * torch.as_tensor(n))
    ones = np.ones(8, np.float32)
    made = converted(plain, (X, ones), at_once=at_once)
    for given in (ones, ones * 2):
        assert relative_error(made(X, given), plain(X, given)) < 1e-2
    assert made.plan.lowered


@CONVERTED
def test_an_op_that_fake_tensors_fail_on_ends_a_graph(*, at_once: bool) -> None:
    """Its meta function makes two unknown extents and returns one (torch 2.13)."""

    def pairs(m: Any, x: Any) -> Any:
        y = m.inner(x)
        return torch.combinations(y[0, :4]), y

    plain = model(pairs)
    made = converted(plain, (X,), at_once=at_once)
    assert relative_error(made(X), plain(X)) < 1e-2
    assert made.plan.lowered


def test_a_part_that_cannot_be_captured_is_named() -> None:
    untyped: Any = torch

    def fail(_: Any) -> None:
        message = "refused by a test"
        raise RuntimeError(message)

    def refused(m: Any, x: Tensor) -> Tensor:
        untyped._dynamo.comptime.comptime(fail)  # runs while dynamo captures
        return m.inner(x)

    wanted = (
        r"a part of Program cannot be captured by dynamo at .*test_lazy_runner\.py:"
        r"\d+: RuntimeError: refused by a test; keep that part out with torch.compiler"
    )
    with pytest.raises(CaptureError, match=wanted):
        amprewrite.convert(model(refused))(X)


def test_a_model_that_fails_itself_is_named_at_a_later_call(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = amprewrite.convert(model(lambda m, x: m.inner(x).view(3, -1)))
    assert made(torch.ones(3, 8)).shape == (3, 8)
    with pytest.raises(CaptureError, match="Program itself fails on these arguments"):
        made(torch.ones(2, 8))
    assert capfd.readouterr().err == ""


def test_a_failed_export_writes_no_graph_and_no_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    plain = model(lambda m, x: m.inner(x) if x.sum().item() > -9 else x)
    made = amprewrite.convert(plain, args=(X,))
    assert made(X[:1]).shape == (1, 8)
    assert made(X[:0]).shape == (0, 8)
    assert capfd.readouterr().err == ""


def test_a_model_that_fails_in_an_export_is_named_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CaptureError, match="Program itself fails on these arguments"):
        amprewrite.convert(model(lambda m, x: m.inner(x)), args=(X[:, :3],))
    assert capfd.readouterr().err == ""


def test_advice_is_to_give_args_only_where_none_were_given() -> None:
    packed = nn.utils.rnn.pack_sequence([X[:3], X[:2]])
    with pytest.warns(AmpWarning, match=r"no graph of this model; convert with args"):
        amprewrite.convert(nn.GRU(8, 8).eval())(packed)
    with pytest.warns(AmpWarning, match=r"no graph of this model; GRU cannot be"):
        amprewrite.convert(nn.GRU(8, 8).eval(), args=(packed,))

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.probes.sensitivity import (
    Found,
    Probe,
    Rounding,
    Shift,
)

X = torch.tensor([1.0, 1 + 2**-9, 1e5, float("inf")])


def test_the_error_of_a_rounding():
    half = Rounding(torch.float16, frozenset("s"))
    assert half.error(X, "v")[:2].tolist() == [0.0, 0.0]
    assert half.error(X, ("v", "op"))[2].isinf()
    assert half.error(X, "s")[2] == half.error(X, ("s", "op"))[2] == 65504 - 1e5
    assert half.error(X, "s")[3] == half.error(X, "v")[3] == 0
    brain = Rounding(torch.bfloat16, frozenset())
    assert brain.error(X, "v")[1] == -(2**-9)
    eighth = Rounding(torch.float8_e4m3fn, frozenset())
    assert eighth.error(X, "v")[:2].tolist() == [0.0, -(2**-9)]


def test_a_measured_error_takes_the_place_of_the_rounding():
    error = torch.tensor([0.5, 0.0, 0.0, 0.0])
    rounding = Rounding(torch.bfloat16, frozenset(), {"v": error})
    assert torch.equal(rounding.error(X, "v"), error)
    assert not torch.equal(rounding.error(X, "other"), error)


def test_a_probe_is_an_identity_that_finds_gradient_times_error():
    found: Found = []
    x = torch.tensor([1.0, 1 + 2**-9], requires_grad=True)
    token = torch.zeros((), requires_grad=True)
    rounding = Rounding(torch.bfloat16, frozenset())
    y = Probe.apply(x, token, "x", rounding, found)
    assert torch.equal(y, x)
    (y * torch.tensor([3.0, 5.0])).sum().backward()
    assert x.grad.tolist() == [3.0, 5.0]
    ((key, moved),) = found
    assert (key, moved.item()) == ("x", -5 * 2**-9)


def test_a_gradient_that_is_nan_counts_as_none():
    found: Found = []
    x = torch.tensor([1 + 2**-9, -1.0, float("nan")], requires_grad=True)
    token = torch.zeros((), requires_grad=True)
    rounding = Rounding(torch.bfloat16, frozenset())
    y = Probe.apply(x, token, "x", rounding, found)
    torch.where(y > 0, y.sqrt(), 0).sum().backward()
    assert x.grad.isfinite().all()
    assert found[0][1].item() == pytest.approx(-(2**-9) / 2, rel=1e-2)


def test_an_infinite_gradient_counts_where_there_is_a_rounding():
    for value, moved in ((0.0, 0.0), (1e-45, float("inf"))):
        found: Found = []
        x = torch.tensor([value], requires_grad=True)
        token = torch.zeros((), requires_grad=True)
        half = Rounding(torch.float16, frozenset())
        y = Probe.apply(x, token, "x", half, found)
        (y * float("inf")).nansum().backward()
        assert abs(found[0][1].item()) == moved


def test_a_shift_is_an_identity_that_finds_gradient_times_change():
    for last, moved in ((2.0, -2.0), (float("nan"), -8.0)):
        found: Found = []
        x = torch.tensor([1.0, 3.0], requires_grad=True)
        token = torch.zeros((), requires_grad=True)
        y = Shift.apply(x, token, ("w", "op"), torch.tensor([-2.0, last]), found)
        assert torch.equal(y, x)
        (y * torch.tensor([4.0, 3.0])).sum().backward()
        assert x.grad.tolist() == [4.0, 3.0]
        ((key, effect),) = found
        assert (key, effect.item()) == (("w", "op"), moved)

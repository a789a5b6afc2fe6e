"""Placement by measured prices: low where that pays on this device, full elsewhere."""

from pathlib import Path

import pytest

import amprewrite
from amprewrite.plan import Plan
from amprewrite.plan.hardware import Device, cache_file, save_calibration
from tests.calibrations import calibration, slow_below

SMALL, LARGE = 16, 128
EDGE = 64**3
"""Products of more multiply-adds than this are faster low."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def keep(device: Device) -> None:
    """Pretend that bfloat16 is slow in small products, and float16 in all."""
    slow = slow_below(10**12)
    save_calibration(calibration(device, bfloat16=slow_below(EDGE), float16=slow))


def by_path(plan: Plan) -> dict[str, str]:
    linears = (d for d in plan.decisions if d.op_class == "allow")
    return {d.path or d.op: d.precision for d in linears}


def torch_case():
    torch = pytest.importorskip("torch")
    from torch import nn

    from amprewrite.frameworks.torch_fx.probes.calibrate import describe

    keep(describe(torch.device("cpu")))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Linear(SMALL, SMALL)
            self.large = nn.Linear(LARGE, LARGE)

        def forward(self, x, y):
            return self.small(x).relu(), self.large(y).relu()

    args = torch.randn(SMALL, SMALL), torch.randn(LARGE, LARGE)
    return Both().eval(), args


def jax_case():
    jax = pytest.importorskip("jax")
    from amprewrite.frameworks.jaxpr.probes.calibrate import describe

    keep(describe())

    def both(x, y, w, v):
        return jax.nn.relu(x @ w), jax.nn.relu(y @ v)

    sides = (SMALL, LARGE, SMALL, LARGE)
    return both, tuple(jax.numpy.ones((side, side)) for side in sides)


CASES = {"torch": torch_case, "jax": jax_case}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("target", ["eager", "compiled"])
def test_exactly_the_products_that_are_slower_low_stay_full(case, target: str) -> None:
    model, args = case()
    options = {"args": args, "placement": "optimal", "target": target}
    plan = amprewrite.inspect(model, "bf16", training=False, **options)
    assert [*by_path(plan).values()] == ["float32", "bfloat16"]
    assert plan.prices.startswith("measured on ")
    assert plan.cost.lower_bound == plan.cost.total_bytes
    assert f"prices: {plan.prices}" in plan.summary()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_low_dtype_has_its_own_prices(case) -> None:
    model, args = case()
    plan = amprewrite.inspect(model, "fp16", args=args, placement="optimal")
    assert not plan.lowered
    assert "by prices measured on " in "".join(plan.warnings)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_promotion_asks_no_prices_but_is_priced_by_them(case) -> None:
    model, args = case()
    plans = {
        placement: amprewrite.inspect(model, args=args, placement=placement)
        for placement in ("promote", "optimal")
    }
    assert set(by_path(plans["promote"]).values()) == {"bfloat16"}
    promoted, optimal = plans["promote"], plans["optimal"]
    assert promoted.prices == optimal.prices
    assert promoted.prices.startswith("measured on ")
    assert optimal.cost.lower_bound == optimal.cost.total_bytes
    assert optimal.cost.total_bytes <= promoted.cost.total_bytes


def test_a_converted_module_runs_and_keeps_its_plan(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model, args = torch_case()
    converted = amprewrite.convert(model, args=args, placement="optimal")
    converted.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == converted.plan
    small, large = model(*args)
    found = converted(*args)
    assert torch.equal(found[0], small)
    assert not torch.equal(found[1], large)
    torch.testing.assert_close(found[1], large, rtol=0.1, atol=0.05)


def test_a_tolerance_is_kept_at_measured_prices() -> None:
    pytest.importorskip("torch")
    model, args = torch_case()
    options = {"args": args, "placement": "optimal", "tolerance": 1e-1}
    plan = amprewrite.inspect(model, **options)
    for found in (plan, amprewrite.convert(model, **options).plan):
        assert found.prices.startswith("measured on ")
        assert [*by_path(found).values()] == ["float32", "bfloat16"]


def test_torch_compile_plans_by_measured_prices() -> None:
    torch = pytest.importorskip("torch")
    model, args = torch_case()
    plans: list[Plan] = []
    options = {"placement": "optimal", "plans": plans}
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend="amprewrite", options=options)(*args)
    assert [*by_path(plans[0]).values()] == ["float32", "bfloat16"]


def test_without_measurements_plans_are_the_default_ones() -> None:
    pytest.importorskip("torch")
    model, args = torch_case()
    from amprewrite.frameworks.torch_fx.probes.calibrate import device_of

    cache_file(device_of(model, args, None)).unlink()
    plan = amprewrite.inspect(model, args=args, placement="optimal")
    assert plan.prices == "default"
    assert "bfloat16" in by_path(plan).values()


@pytest.mark.gpu
def test_a_gpu_is_calibrated_and_lowers_large_products() -> None:
    import torch
    from torch import nn

    from amprewrite.frameworks.torch_fx.probes.calibrate import describe, measure

    device = torch.device("cuda")
    save_calibration(measure(device))
    model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096))
    model, args = model.to(device).eval(), (torch.randn(4096, 4096, device=device),)
    plan = amprewrite.inspect(model, args=args, placement="optimal")
    assert plan.prices == f"measured on {describe(device)}"
    assert set(by_path(plan).values()) == {"bfloat16"}
    assert plan.cost.lower_bound == plan.cost.total_bytes


def test_without_a_calibration_a_processor_has_the_prices_of_its_class(monkeypatch):
    """Nothing is lowered where bfloat16 is emulated; the variable turns that off."""
    torch = pytest.importorskip("torch")
    from amprewrite.frameworks.torch_fx.probes import calibrate

    emulating = Device(
        framework="torch", version="1", kind="cpu", name="X", features="avx2"
    )
    monkeypatch.setattr(calibrate, "describe", lambda _: emulating)
    layers = [torch.nn.Linear(LARGE, LARGE) for _ in range(2)]
    model = torch.nn.Sequential(*layers).eval()
    args = (torch.randn(LARGE, LARGE),)
    plan = amprewrite.inspect(model, args=args, placement="optimal")
    assert plan.prices == "default"
    assert plan.lowered
    monkeypatch.delenv("AMPREWRITE_PRICES")
    plan = amprewrite.inspect(model, args=args, placement="optimal")
    assert plan.prices.startswith("measured on ")
    assert not plan.lowered

"""The measured error of each rounding, against errors that are really made."""

from math import inf, sqrt
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.probes import sensitivity
from amprewrite.frameworks.torch_fx.probes.sensitivity import measure_sensitivity
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.passes.error_budget.budget import find_probes
from amprewrite.plan import sensitivity as plan_sensitivity
from amprewrite.plan.sensitivity import Sensitivity
from amprewrite.policy import Matcher, load_policy


class Function(nn.Module):
    """A function of some linear layers and the arguments."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def relative(outputs: Any) -> dict[str, float]:
    squares = (float(t.detach().square().sum()) for t in outputs.values())
    return dict.fromkeys(outputs, 1 / sqrt(sum(squares)))


def measured(run: Any, *args: Any, policy: str = "bf16", scales: Any = relative):
    model = Function(run).eval()
    with torch.no_grad():
        reading = read(capture(model, args, None).module)
    probes = find_probes(
        reading.graph, Matcher(load_policy(policy)), keep_parameter_dtype=False
    )
    copies = [x.clone() for x in args]
    return model, measure_sensitivity(reading, probes, copies, scales)


def x(rows: int = 64) -> Any:
    return torch.randn(rows, 32)


def rounded(tensor: Any) -> Any:
    return tensor.bfloat16().float()


def squared(wrong: Any, right: Any) -> float:
    found = (wrong - right).square().sum() / right.square().sum()
    return float(found.detach())


def test_the_error_of_a_stored_value_is_that_of_rounding_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(plan_sensitivity, "DIRECTIONS", 64)
    given = x()
    model, found = measured(lambda m, x: m.b(torch.tanh(m.a(x))), given)
    h = torch.tanh(model.a(given))
    truth = squared(model.b(torch.tanh(rounded(model.a(given)))), model.b(h))
    assert found.stored["linear"] == pytest.approx(truth, rel=0.5)
    # Read by tanh alone, it is the same edge.
    assert found.read["linear", "tanh"] == pytest.approx(found.stored["linear"])
    truth = squared(model.b(rounded(h)), model.b(h))
    assert found.read["tanh", "linear_1"] == pytest.approx(truth, rel=0.5)
    weight = nn.functional.linear(h, rounded(model.b.weight), model.b.bias)
    (key,) = (k for k in found.read if k[1] == "linear_1" and "weight" in k[0])
    truth = squared(weight, model.b(h))
    assert found.read[key] == pytest.approx(truth, rel=0.5)
    assert found.directions == 64


def test_only_the_gradient_through_the_edge_counts(monkeypatch: Any) -> None:
    """A value that two ops read: what one of them rounds, the other does not see."""
    monkeypatch.setattr(plan_sensitivity, "DIRECTIONS", 64)
    given = x()
    model, found = measured(lambda m, x: 100 * x + m.a(x), given)
    right = 100 * given + model.a(given)
    truth = squared(100 * given + model.a(rounded(given)), right)
    (key,) = (
        k
        for k in found.read
        if k[1] == "linear" and "weight" not in k[0] and "bias" not in k[0]
    )
    assert found.read[key] == pytest.approx(truth, rel=0.5)


def test_a_scalar_output_has_one_direction_and_is_exact() -> None:
    given = x()
    model, found = measured(lambda m, x: m.a(x).square().mean(), given)
    assert found.directions == 1
    h = model.a(given)
    first = ((rounded(h) - h) * h * 2 / h.numel()).sum() / h.square().mean()
    assert found.stored["linear"] == pytest.approx(float(first.detach()) ** 2, rel=1e-3)


def test_scales_weigh_the_outputs() -> None:
    def run(m: Any, x: Any) -> Any:
        return m.a(x), m.b(x)

    _, one = measured(run, x(), scales=lambda _: {"0": 1.0})
    assert one.stored["linear"] > 0.0
    assert one.stored["linear_1"] == 0.0
    _, ten = measured(run, x(), scales=lambda _: {"0": 10.0})
    ratio = ten.stored["linear"] / one.stored["linear"]
    assert ratio == pytest.approx(100, rel=0.9)


def test_errors_pass_what_stops_gradients() -> None:
    def detached(m: Any, x: Any) -> Any:
        return m.b(m.a(x).detach())

    def without(m: Any, x: Any) -> Any:
        with torch.no_grad():
            h = m.a(x)
        return m.b(h)

    for run in (detached, without):
        with torch.enable_grad():
            _, found = measured(run, x())
        (first,) = (e for name, e in found.stored.items() if name != "linear_1")
        assert first > 0.0


def test_errors_pass_a_switch_of_the_gradients_in_the_graph() -> None:
    """As dynamo leaves it, and a graph that is given may have it."""
    given = x()
    model = Function(lambda m, x: m.b(m.a(x))).eval()
    reading = read(capture(model, (given,), None).module)
    graph = reading.module.graph
    (first, second) = (n for n in graph.nodes if "linear" in str(n.target))
    with graph.inserting_before(first):
        graph.call_function(torch._C._set_grad_enabled, (False,))
    with graph.inserting_before(second):
        graph.call_function(torch._C._set_grad_enabled, (True,))
    reading = read(reading.module)
    probes = find_probes(
        reading.graph, Matcher(load_policy("bf16")), keep_parameter_dtype=False
    )
    found = measure_sensitivity(reading, probes, [given], relative)
    assert found.stored["linear"] > 0.0


def test_bodies_are_entered() -> None:
    def run(m: Any, x: Any) -> Any:
        with torch.no_grad():
            h = torch.tanh(m.a(x)) + 1
        return m.b(h)

    with torch.enable_grad():
        _, found = measured(run, x())
    inside = [error for name, error in found.stored.items() if "." in name]
    assert len(inside) >= 2
    assert min(inside) > 0.0


def test_a_region_that_stays_as_traced_is_run_as_it_is() -> None:
    def run(m: Any, x: Any) -> Any:
        h = m.a(x)
        with torch.autocast("cpu", torch.bfloat16):
            h = m.b(h)
        return m.a(h.float())

    _, found = measured(run, x())
    assert found.stored["linear"] > 0.0


def test_a_model_that_writes_in_place_is_measured_and_not_changed() -> None:
    def run(m: Any, x: Any) -> Any:
        m.seen.add_(1)
        h = m.a(x)
        h.relu_()
        return m.b(h)

    given = x()
    before = given.clone()
    model, found = measured(run, given)
    assert model.get_buffer("seen").equal(torch.zeros(()))
    assert given.equal(before)
    assert "linear" not in found.stored
    assert found.stored["linear_1"] > 0.0


def test_directions_do_not_depend_on_the_random_state() -> None:
    def run(m: Any, x: Any) -> Any:
        return m.b(torch.relu(m.a(x)))

    def again(seed: int) -> Sensitivity:
        torch.manual_seed(0)
        model = Function(run).eval()
        given = x()
        reading = read(capture(model, (given,), None).module)
        probes = find_probes(
            reading.graph, Matcher(load_policy("bf16")), keep_parameter_dtype=False
        )
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found = measure_sensitivity(reading, probes, [given], relative)
        assert torch.get_rng_state().equal(state)
        return found

    assert again(1) == again(2)


def test_values_beyond_the_range_have_an_infinite_error_and_a_peak() -> None:
    def run(m: Any, x: Any) -> Any:
        return (m.a(x) * 6e4).argmax(-1), m.b(x)

    _, found = measured(run, x(), policy="fp16")
    assert found.stored["mul"] == inf
    assert 65504 < found.peaks["mul"] < 1e7
    assert found.stored["linear"] < inf


def test_masks_and_their_infinities_have_no_error() -> None:
    keep = torch.ones(64, 32, dtype=torch.bool).tril()

    def infinite(m: Any, x: Any) -> Any:
        return m.b(torch.softmax(m.a(x).masked_fill(~keep, -inf), -1))

    def large(m: Any, x: Any) -> Any:
        mask = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
        return m.b(torch.softmax(m.a(x) + mask, -1))

    def cut(m: Any, x: Any) -> Any:
        return m.b(torch.relu(m.a(x).masked_fill(~keep, -inf)))

    for run in (infinite, large, cut):
        for policy in ("bf16", "fp16"):
            _, found = measured(run, x(), policy=policy)
            assert max(found.all.values()) < 1e-3, (run, policy)


def test_the_op_that_makes_nan_or_infinities_is_named() -> None:
    def bad(m: Any, x: Any) -> Any:
        return m.b(torch.log(m.a(x) - 1e3) + 1)

    def large(m: Any, x: Any) -> Any:
        return torch.exp(x * 1e4) + m.a(x)

    with pytest.raises(ToleranceError, match=r"has NaN .* by aten.log.default") as e:
        measured(bad, x())
    assert "test_sensitivity.py" in str(e.value)
    with pytest.raises(ToleranceError, match=r"infinities .* by aten.exp.default"):
        measured(large, x())


def test_a_model_without_float_outputs_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="float outputs; this model gives none"):
        measured(lambda m, x: m.a(x).argmax(-1), x())


@torch.library.custom_op("amprewrite_test_sense::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_op_without_a_gradient_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"sense.twice.* cannot be differentia"):
        measured(lambda m, x: m.b(twice(m.a(x))), x())


class Factors(nn.Module):
    """Contractions of a value with weights, some with an addend."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.linear = nn.Linear(8, 8)
        self.left, self.bias = (
            nn.Parameter(torch.randn(4, 4)),
            nn.Parameter(torch.ones(8)),
        )

    def forward(self, x: Any) -> Any:
        y = torch.addmm(self.bias, torch.tanh(self.linear(self.conv(x))), self.left2)
        return torch.einsum("ij,jk->ik", self.left, y)

    @property
    def left2(self) -> Any:
        return self.linear.weight * 2


def test_a_weight_has_the_error_that_its_gradient_gives(monkeypatch: Any) -> None:
    given = torch.randn(4, 8)
    with torch.no_grad():
        reading = read(capture(Factors().eval(), (given,), None).module)
    probes = find_probes(
        reading.graph, Matcher(load_policy("bf16")), keep_parameter_dtype=False
    )
    shifts: list[str] = []
    before = sensitivity.linear_factors

    def noted(op: Any) -> list[str]:
        shifts.extend(before(op))
        return before(op)

    monkeypatch.setattr(sensitivity, "linear_factors", noted)
    found = measure_sensitivity(reading, probes, [given], relative)
    assert len(set(shifts)) >= 5
    monkeypatch.setattr(sensitivity, "linear_factors", lambda _: [])
    wanted = measure_sensitivity(reading, probes, [given], relative)
    assert found.moves.keys() == wanted.moves.keys()
    assert sum(map(bool, map(any, found.moves.values()))) >= 6
    for key, row in wanted.moves.items():
        assert found.moves[key] == pytest.approx(row, rel=1e-3, abs=1e-7), key

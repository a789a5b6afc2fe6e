"""Bounds on outputs, and candidates that are measured without copying weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.torch_fx.probes import tolerance
from amprewrite.measure.tolerance import plan_within


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        return {"first": self.a(x), "second": self.b(x), "zero": x * 0.0}


def planned(model: nn.Module, bound: Any, **options: Any) -> Any:
    given = options.pop("args", None) or (torch.randn(256, 256),)
    return amprewrite.inspect(
        model, args=given, placement="optimal", tolerance=bound, **options
    )


def test_each_output_has_its_own_bound() -> None:
    plan = planned(Two().eval(), {"first": 1e-1, "second": 1e-5})
    assert plan.by_op["linear"].precision == "bfloat16"
    assert plan.by_op["linear_1"].precision == "float32"
    free = planned(Two().eval(), {"first": 1e-5})
    assert free.by_op["linear"].precision == "float32"
    assert free.by_op["linear_1"].precision == "bfloat16"


def test_an_unknown_output_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ToleranceError, match="are 'first', 'second', 'zero'"):
        planned(Two().eval(), {"logits": 1e-2})


def test_an_output_of_zeros_has_no_relative_error() -> None:
    with pytest.raises(ToleranceError, match=r"tolerance\['zero'\]: this output is"):
        planned(Two().eval(), {"zero": 1e-2})


def test_autocast_is_a_bound() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).eval()
    given = torch.randn(256, 256)
    converted = amprewrite.convert(
        model, args=(given,), placement="optimal", tolerance="autocast"
    )
    right = model(given)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = model(given).float()
    assert converted.plan.lowered
    assert (converted(given) - right).norm() <= (theirs - right).norm()


def test_autocast_that_changes_nothing_bounds_nothing() -> None:
    with pytest.raises(ToleranceError, match="autocast on these arguments is 0"):
        planned(nn.GELU().eval(), "autocast")


def building(monkeypatch: Any, change: Callable[[Any], Any]) -> None:
    """Let ``change`` replace the function that builds the candidates."""

    def changed(budget: Any, subject: Any) -> Any:
        return plan_within(
            budget,
            replace(
                subject, builders=replace(subject.builders, measured=change(subject))
            ),
        )

    monkeypatch.setattr(tolerance, "plan_within", changed)


def test_a_candidate_has_its_own_graphs_and_the_same_tensors(monkeypatch: Any) -> None:
    seen: list[Any] = []

    def noting(subject: Any) -> Any:
        def build(captured: Any, plan: Any) -> Any:
            names = [[n.name for n in m.graph.nodes] for m in (captured.module, module)]
            assert captured.module.graph is not module.graph
            assert names[0] == names[1]
            ours = dict(captured.module.named_parameters())
            theirs = dict(module.named_parameters())
            seen.append([ours[name] is theirs[name] for name in ours])
            return subject.builders.measured(captured, plan)

        module = subject.capture.module
        return build

    building(monkeypatch, noting)
    planned(Two().eval(), 1e-2)
    assert seen
    assert all(same == [True] * 4 for same in seen)


def test_a_model_that_draws_is_predicted_and_says_so(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.5), nn.Linear(256, 256))
    before = torch.get_rng_state()
    with monkeypatch.context() as patched:
        building(patched, lambda _: None)  # no candidate is made
        plan = planned(model.train(), 1e-2, args=(torch.ones(256, 256),))
    assert tolerance.RANDOM in plan.warnings
    assert plan.predicted_error is not None
    assert torch.get_rng_state().equal(before)
    assert tolerance.RANDOM not in planned(model.eval(), 1e-2).warnings


def test_a_tolerance_needs_arguments_and_one_graph() -> None:
    with pytest.raises(UnsupportedError, match="tolerance needs args="):
        amprewrite.convert(Two().eval(), placement="optimal", tolerance=1e-2)

    class Branching(Two):
        def forward(self, x: Any) -> Any:
            return self.a(x) if float(x.sum()) > 0 else self.b(x)

    with pytest.raises(UnsupportedError, match="as one graph, with arguments"):
        amprewrite.convert(
            Branching().eval(),
            args=(torch.randn(4, 256),),
            placement="optimal",
            tolerance=1e-2,
        )


def test_a_policy_that_lowers_nothing_needs_no_bound() -> None:
    assert planned(Two().eval(), 1e-9, policy="off").lowered == ()


class Strict(Two):
    def forward(self, x: Any) -> Any:
        made = torch.zeros(256, 256)
        made.index_put_((torch.arange(256),), self.a(x))
        return made


def test_autocast_that_does_not_run_is_no_bound() -> None:
    with pytest.raises(ToleranceError, match=r"not run under torch\.autocast in bfl"):
        planned(Strict().eval(), "autocast")
    assert planned(Strict().eval(), 1e-2).lowered


class Odd(Two):
    def forward(self, x: Any) -> Any:
        return {"a": self.a(x), "b": torch.log(self.b(x) * 0)}


def test_only_the_bounded_outputs_must_be_finite() -> None:
    assert planned(Odd().eval(), {"a": 1e-2}).lowered
    for bound in (1e-2, "autocast", {"b": 1e-2}):
        with pytest.raises(ToleranceError, match=r"b has infinities .* by aten\.log"):
            planned(Odd().eval(), bound)


class Choosing(Two):
    def forward(self, x: Any) -> Any:
        return self.a(x).argmax(-1)


@pytest.mark.parametrize("bound", [1e-2, "autocast"])
def test_a_model_without_float_outputs_says_so(bound: Any) -> None:
    with pytest.raises(UnsupportedError, match="this model gives none"):
        planned(Choosing().eval(), bound)


class Spectral(Two):
    def forward(self, x: Any) -> Any:
        return torch.fft.fft(self.a(x)).conj()


def test_complex_outputs_have_errors() -> None:
    model, given = Spectral().eval(), torch.randn(256, 256)
    converted = amprewrite.convert(
        model, args=(given,), placement="optimal", tolerance=1e-2
    )
    with torch.no_grad():
        right = model(given)
        error = float((converted(given) - right).norm() / right.norm())
    assert converted.plan.lowered
    assert error / 1.5 < converted.plan.predicted_error < error * 1.5

"""What a model was seen to use, for which its capture is not faithful."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.capture.seen import Seen, watching
from amprewrite.frameworks.torch_fx.compat import watchers
from tests.torch_programs import Program


def x() -> Any:
    return torch.randn(4, 8)


def exported(function: Any, *args: Any, **parts: Any) -> Captured:
    return export_model(Program(function, **parts).eval(), args or (x(),), {})


def test_what_training_loses_is_no_reason_that_an_inference_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unheard = tuple(
        watchers.Trial(name, lambda: False, "", trained=trained)
        for name, trained in (("checkpoints", True), ("regions", False))
    )
    monkeypatch.setattr(watchers, "failed", lambda _: unheard)
    with watching(seen := Seen()):
        pass
    assert seen.unnoticed == ["checkpoints"]
    assert "does not tell a capture of checkpoints" in seen.reason(training=True)
    assert not seen.reason(training=False)


def test_a_custom_function_is_noted() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            del ctx
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            del ctx
            return grad

    seen = exported(lambda _, x: Twice.apply(x)).seen
    assert seen.functions == ["Twice"]
    assert seen.reason(training=True) == "export drops the backward of Twice"


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_noted(*, reentrant: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        return checkpoint(m.a, x, use_reentrant=reentrant)

    seen = exported(forward, x().requires_grad_(), a=nn.Linear(8, 8)).seen
    assert seen.checkpoints
    assert seen.reason(training=True) == "export removes activation checkpoints"


def test_hooks_on_saved_tensors_are_noted() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return m.a(x)

    seen = exported(forward, a=nn.Linear(8, 8)).seen
    assert (seen.saved, seen.checkpoints) == (1, 0)
    assert seen.reason(training=True) == "export drops hooks on saved tensors"
    assert seen.reason(training=False) == ""


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda d: d["kept"].append(d["x"]), ["the argument given"]),
        (lambda d: d.update(count=d["count"] + 1), ["the argument given"]),
        (lambda d: d.pop("count"), ["the argument given"]),
        (lambda d: d["x"].mul_(2), []),
        (lambda d: d.update(count=3), []),
    ],
)
def test_arguments_that_the_forward_changes_are_noted(change: Any, names: Any) -> None:
    class Model(nn.Module):
        def forward(self, given: Any, *others: Any) -> Any:
            change(given)
            return given["x"] * len(others)

    given: dict[str, Any] = {"x": x(), "kept": [], "count": 3}
    seen = export_model(Model(), (given, [x()]), {}).seen
    assert seen.written == names
    assert given["kept"] == []
    assert given["count"] == 3


def test_a_plain_model_gives_no_reason_against_export() -> None:
    captured = exported(lambda m, x: m.a(x), a=nn.Linear(8, 8))
    assert captured.seen.reason(training=True) == ""
    assert captured.how == "captured by torch.export"


def test_functions_of_torch_itself_are_noted_but_not_those_of_custom_ops() -> None:
    seen = Seen()
    given = torch.randn(2, 4, 3, 3, requires_grad=True)
    with watching(seen):
        nn.CrossMapLRN2d(2)(given)
    assert seen.functions == ["CrossMapLRN2d"]
    assert "drops the backward of CrossMapLRN2d" in seen.reason(training=True)
    other = Seen()

    doubled = torch.library.custom_op(
        "amptest::doubled",
        lambda x: x * 2,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    doubled.register_autograd(lambda _context, gradient: gradient * 2)
    with watching(other):
        doubled(given)
    assert other.functions == []

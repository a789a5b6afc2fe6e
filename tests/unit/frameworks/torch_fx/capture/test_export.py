"""Capturing a model by export: what it used, and what cannot be captured."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.aten.ops import source_line
from amprewrite.frameworks.torch_fx.capture import export
from tests.torch_programs import Program


def x() -> Any:
    return torch.randn(4, 8)


def exported(function: Any, *args: Any, **parts: Any) -> export.Captured:
    return export.export_model(Program(function, **parts).eval(), args or (x(),), {})


def branching(m: Any, x: Any) -> Any:
    h = m.a(x)
    return h if float(h.max()) > 0 else -h


def test_the_offending_line_is_named() -> None:
    with pytest.raises(CaptureError) as caught:
        exported(branching, a=nn.Linear(8, 8))
    line = branching.__code__.co_firstlineno + 2
    assert f"test_export.py:{line}: " in str(caught.value)
    assert "convert without args" not in str(caught.value)  # perhaps it was tried


def test_the_innermost_line_outside_the_framework_is_found() -> None:
    def fails() -> None:
        torch.dot(torch.zeros(2), torch.zeros(3))

    with pytest.raises(RuntimeError) as caught:
        fails()
    line = fails.__code__.co_firstlineno + 1
    found = export.offending_line(caught.value)
    assert found.endswith(f"test_export.py:{line}")


USERS = """
from torch import nn
class Branching(nn.Module):
    def forward(self, x):
        return x if x.max() > 0 else -x
class Doubling(nn.Module):
    def forward(self, x):
        return x * 2
"""


def test_a_directory_of_the_user_may_be_called_torch(tmp_path: Path) -> None:
    """Or as this package, in a clone; its lines are the user's."""
    file = tmp_path / "amprewrite" / "torch" / "model.py"
    found: dict[str, Any] = {}
    exec(compile(USERS, str(file), "exec"), found)
    with pytest.raises(CaptureError) as caught:
        export.export_model(found["Branching"]().eval(), (x(),), {})
    assert f"{file}:5: " in str(caught.value)
    graph = export.export_model(found["Doubling"]().eval(), (x(),), {}).module.graph
    (node,) = graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    assert source_line(node) == "model.py:8"


def test_an_error_that_was_never_raised_has_no_line() -> None:
    assert export.offending_line(ValueError("made, not raised")) == ""


def test_the_device_of_a_model_is_that_of_its_tensors() -> None:
    assert export.model_device(nn.Linear(2, 2)) == "cpu"
    assert export.model_device(nn.ReLU()) == "cpu"
    assert export.model_device(nn.Linear(2, 2, device="meta")) in ("cpu", "meta")


def test_a_model_on_two_devices_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(CaptureError, match="tensors on cpu, meta; want one device"):
        export.model_device(model)


def test_parameters_of_a_capture_are_those_of_the_model() -> None:
    model: Any = Program(lambda m, x: m.a(x), a=nn.Linear(8, 8)).eval()
    module = export.export_model(model, (x(),), {}).module
    assert module.get_parameter("a.weight") is model.a.weight


def test_capturing_leaves_autocast_and_attention_as_they_were() -> None:
    def state() -> tuple[Any, ...]:
        return (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.backends.mha.get_fastpath_enabled(),
            torch.is_grad_enabled(),
        )

    before = state()
    exported(lambda m, x: m.a(x), a=nn.Linear(8, 8))
    with pytest.raises(CaptureError):
        exported(branching, a=nn.Linear(8, 8))
    assert state() == before


def test_a_region_around_the_capture_changes_no_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        captured = exported(lambda m, x: m.a(x), a=nn.Linear(8, 8))
        assert torch.is_autocast_enabled("cpu")
    nodes = [n for n in captured.module.graph.nodes if n.op == "call_function"]
    assert [n.target for n in nodes] == [torch.ops.aten.linear.default]
    assert nodes[0].meta["val"].dtype == torch.float32


def test_a_region_that_transformers_opens_under_autocast_only_is_seen() -> None:
    generic = pytest.importorskip("transformers.utils.generic")

    def forward(m: Any, x: Any) -> Any:
        with generic.maybe_autocast("cpu", enabled=False):
            return m.a(x)

    names = [
        str(n.target) for n in exported(forward, a=nn.Linear(8, 8)).module.graph.nodes
    ]
    assert any("autocast" in name for name in names)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_model_that_autograd_refuses_is_captured_without_gradients(
    *, gradients: bool
) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        one, other = h.chunk(2)
        one.copy_(other)
        return h

    model, given = Program(forward, a=nn.Linear(8, 8)), x()
    with torch.set_grad_enabled(gradients):
        captured = export.export_model(model, (given,), {})
    assert captured.how == "captured by torch.export without gradients"
    with torch.no_grad():
        assert torch.equal(captured.module(given), model(given))


def test_one_tensor_for_two_arguments_is_two_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, a: Any, b: Any) -> Any:
            return self.linear(a) - self.linear(b["b"])

    x, other = torch.randn(2, 4), torch.randn(2, 4, requires_grad=True)
    model = Two()
    module = export.export_model(model, (x, {"b": x}), {}).module
    assert torch.equal(module(x, {"b": other}), model(x, {"b": other}))
    assert not module(x, {"b": x}).any()


@pytest.mark.parametrize("name", ["registered", "plain", "weight"])
def test_a_tensor_of_the_model_may_be_an_argument(name: str) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 4))
            self.plain = torch.randn(2, 4)
            self.registered = nn.Buffer(torch.randn(2, 4))

        def forward(self, x: Any) -> Any:
            return x * self.weight + self.plain + 2 * self.registered

    model, other = Holds(), torch.randn(2, 4)
    module = export.export_model(model, (getattr(model, name),), {}).module
    assert torch.equal(module(other), model(other))

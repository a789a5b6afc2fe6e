"""Packed weights are plain tensors for whoever asks for them, and never stale."""

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import OfMatrix
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import (
    FOREIGN,
    HELD,
    KEY,
    NOT_PLAIN,
    OTHER_BITS,
    OTHER_LAYOUT,
    TRAINED,
    PackedWeight,
    pack,
)
from tests.packing import pack_float32

X = torch.linspace(-1, 1, 128).reshape(2, 64)
MATRIX, TURNED = OfMatrix(), OfMatrix(transposed=True)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_float32(monkeypatch)


def layer() -> Any:
    torch.manual_seed(0)
    return nn.Linear(64, 192).eval()


def packed_layer() -> tuple[Any, Any]:
    """Return a layer with a packed weight, and the values of the weight."""
    made = layer()
    values = made.weight.detach().clone()
    assert pack(made.weight, MATRIX, X) == ""
    assert type(made.weight) is PackedWeight
    return made, values


def stored(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file)["weight"]


def exported(model: Any, *, strict: bool) -> Any:
    program = torch.export.export(model, (X,), strict=strict)
    return program.state_dict["weight"]


def inside(context: Any, model: Any) -> Any:
    with context:
        model(X)
    return model.weight


READERS: dict[str, Callable[[Any], Any]] = {
    "state_dict": lambda m: m.state_dict()["weight"],
    "save": stored,
    "deepcopy": lambda m: copy.deepcopy(m).weight,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)).weight,
    "detach": lambda m: m.weight.detach(),
    "data": lambda m: m.weight.data,
    "numpy": lambda m: torch.from_numpy(m.weight.detach().numpy()),
    "cat": lambda m: torch.cat([m.weight, m.weight])[:192],
    "to": lambda m: m.to("cpu").weight,
    "repr": lambda m: m.weight if "Parameter containing" in repr(m.weight) else None,
    "export": lambda m: exported(m, strict=False),
    "strict": lambda m: exported(m, strict=True),
    "inference": lambda m: inside(torch.inference_mode(), m),
    "meta device": lambda m: inside(torch.device("meta"), m),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_get_the_plain_weight(reader: str) -> None:
    model, values = packed_layer()
    found = READERS[reader](model)
    assert torch.equal(found.detach(), values)
    assert type(found) in (torch.Tensor, nn.Parameter)
    assert type(model.weight) is nn.Parameter
    assert model.weight.requires_grad
    assert model.weight.stride() == values.stride()


def test_callers_without_a_function_of_torch_get_it_too() -> None:
    model, values = packed_layer()
    run = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(run(X), nn.functional.linear(X, values, model.bias))
    model, values = packed_layer()
    with pytest.warns((DeprecationWarning, FutureWarning), match="trace"):
        traced: Any = torch.jit.trace(model, X)
    assert torch.equal(traced.weight, values)
    for transform in (torch.func.vmap, torch.func.grad):
        model, values = packed_layer()
        transform(lambda x, m=model: m(x).sum())(X)
        assert torch.equal(model.weight, values)


def test_a_transform_sees_no_trace_of_it() -> None:
    model, values = packed_layer()
    found = torch.func.vmap(lambda x: model.weight @ x)(X)
    assert torch.equal(model.weight, values)
    torch.testing.assert_close(found, X @ values.T)


def test_writes_are_to_the_plain_weight_and_are_counted() -> None:
    model, values = packed_layer()
    version = 0
    for write in (
        lambda: model.weight.mul_(2),
        lambda: model.weight.data.mul_(2),
        lambda: model.load_state_dict({**model.state_dict(), "weight": values * 8}),
        lambda: torch.nn.init.constant_(model.weight, 0.5),
    ):
        assert pack(model.weight, MATRIX, X) == ""
        with torch.no_grad():
            write()
        assert model.weight._version >= version
        version = model.weight._version
    assert torch.equal(model.weight, torch.full_like(values, 0.5))
    assert version >= 3


def test_its_description_can_be_read_without_unpacking_it() -> None:
    model, values = packed_layer()
    weight = model.weight
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, weight.numel()) == (
        (192, 64),
        torch.float32,
        12288,
    )
    assert weight.device.type == "cpu"
    assert weight.requires_grad
    assert weight.grad is None
    assert {*model.parameters()} == {weight, model.bias}
    assert type(weight) is PackedWeight
    assert torch.equal(weight, values)


def test_its_class_makes_plain_parameters() -> None:
    model, values = packed_layer()
    made = type(model.weight)(values, requires_grad=False)
    assert type(made) is nn.Parameter
    assert not made.requires_grad


def test_a_buffer_is_packed_too_and_is_no_parameter() -> None:
    held = torch.arange(4096.0).view(64, 64).clone()
    assert pack(held, TURNED, X) == ""
    assert not isinstance(held, nn.Parameter)
    assert torch.equal(held, torch.arange(4096.0).view(64, 64))
    assert type(held) is torch.Tensor


def test_nans_and_infinities_keep_their_bits() -> None:
    held = torch.full((64, 64), float("inf"))
    held.view(torch.int32)[3, 5] = 0x7FC01234  # a NaN with a payload
    assert pack(held, MATRIX, X) == ""
    assert held.view(torch.int32)[3, 5].item() == 0x7FC01234
    assert held[0, 0].item() == float("inf")


def test_a_weight_that_something_else_holds_stays_plain() -> None:
    model = layer()
    state = model.state_dict()
    assert pack(model.weight, MATRIX, X) == HELD
    del state
    array = model.weight.detach().numpy()
    assert pack(model.weight, MATRIX, X) == HELD
    del array
    out = model(X)
    assert pack(model.weight, MATRIX, X) == HELD
    out.sum().backward()
    assert pack(model.weight, MATRIX, X) == TRAINED
    model.weight.grad = None
    handle = model.weight.register_hook(lambda grad: grad)
    assert pack(model.weight, MATRIX, X) == TRAINED
    handle.remove()
    whole = torch.zeros(128, 64)
    assert pack(whole[:64], MATRIX, X) == HELD
    assert pack(whole.t(), MATRIX, X) == NOT_PLAIN
    assert pack(torch.zeros(64), MATRIX, X) == NOT_PLAIN
    with torch.inference_mode():
        assert pack(torch.zeros(64, 64), MATRIX, X) == NOT_PLAIN


def test_a_weight_in_memory_of_others_stays_plain(tmp_path: Any) -> None:
    shared = layer().share_memory().weight
    array = nn.Parameter(torch.from_numpy(np.zeros((192, 64), np.float32)))
    file = str(tmp_path / "weights")
    memory = torch.from_file(file, shared=True, size=192 * 64).untyped_storage()
    mapped = torch.empty(0).set_(memory, 0, (192, 64), (64, 1))
    del memory
    for weight in (shared, array, mapped):
        assert pack(weight, MATRIX, X) == FOREIGN


def test_a_weight_is_packed_in_one_layout() -> None:
    model, _ = packed_layer()
    assert pack(model.weight, MATRIX, X) == ""
    assert pack(model.weight, TURNED, X) == OTHER_LAYOUT


def test_a_layout_that_loses_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "plain", lambda matrix: matrix.to_dense().neg())
    model = layer()
    assert pack(model.weight, MATRIX, X) == OTHER_BITS
    assert type(model.weight) is nn.Parameter


def test_its_memory_is_held_once() -> None:
    model, _ = packed_layer()
    held = vars(model.weight)[KEY]
    assert kernels.size(held.values) == 192 * 64 * 4
    with torch._C.DisableTorchFunctionSubclass():  # as nobody should
        assert model.weight.data_ptr() == 0
        with pytest.raises(RuntimeError):
            model.weight.sum()


def test_two_threads_may_ask_at_once() -> None:
    model, values = packed_layer()
    found: list[Any] = []

    def read() -> None:
        found.append(model.weight.detach().clone())

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(one, values) for one in found)

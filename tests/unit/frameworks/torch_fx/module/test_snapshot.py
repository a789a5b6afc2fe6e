"""Copies of what a model holds."""

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module import snapshot
from tests.torch_programs import Program


def test_a_parameter_stays_one_in_memory_of_its_own() -> None:
    held = nn.Parameter(torch.ones(3), requires_grad=False)
    made = snapshot.copied(held, {})
    assert isinstance(made, nn.Parameter)
    assert not made.requires_grad
    assert made.data_ptr() != held.data_ptr()


def test_views_of_one_storage_have_copies_of_one_storage() -> None:
    whole, memo = torch.arange(6.0), dict[int, Any]()
    first, last = snapshot.copied(whole[:4], memo), snapshot.copied(whole[2:], memo)
    first.zero_()
    assert last.tolist() == [0, 0, 4, 5]
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]


def test_tied_weights_stay_tied() -> None:
    table = nn.Embedding(8, 4)
    head = nn.Linear(4, 8, bias=False)
    head.weight = table.weight
    model = Program(lambda m, x: m.head(m.table(x)), table=table, head=head).eval()
    program = amprewrite.convert(model, "off", args=(torch.arange(3),))
    tied = program.get_parameter("table.weight")
    assert program.get_parameter("head.weight") is tied
    assert tied is not table.weight


def test_constants_of_the_code_are_copied() -> None:
    scale = torch.full((4,), 2.0)
    model, x = Program(lambda _, x: x * scale).eval(), torch.randn(3, 4)
    program = amprewrite.convert(model, "off", args=(x,))
    scale.zero_()
    assert torch.equal(program(x), x * 2)


def test_tensors_of_autograd_are_copied_detached() -> None:
    model: Any = nn.Linear(4, 4)
    model.__dict__["scaled"] = model.weight * 2
    twin: Any = snapshot.snapshot(model)
    assert torch.equal(twin.scaled, model.scaled)
    assert not twin.scaled.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse")
def test_compressed_tensors_are_copied() -> None:
    model: Any = nn.Linear(4, 4)
    model.register_buffer("table", torch.eye(4).to_sparse_csr())
    twin: Any = snapshot.snapshot(model)
    model.table.values().zero_()
    assert torch.equal(twin.table.to_dense(), torch.eye(4))


def test_a_model_without_values_is_copied() -> None:
    model = nn.Linear(4, 4, device="meta").eval()
    program = amprewrite.convert(model, args=(torch.empty(2, 4, device="meta"),))
    assert program.get_parameter("weight").is_meta


def test_what_cannot_be_copied_is_refused() -> None:
    model: Any = nn.Linear(4, 4).eval()
    model.lock = threading.Lock()
    with pytest.raises(UnsupportedError, match=r"Linear cannot be copied .*lock"):
        amprewrite.convert(model)
    assert amprewrite.convert(model, training=True)(torch.ones(1, 4)).shape == (1, 4)

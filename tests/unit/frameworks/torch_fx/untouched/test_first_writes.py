"""Memory is copied before the first write to it, and put back."""

from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.compat.tensor_internals import reads_values
from amprewrite.frameworks.torch_fx.untouched.first_writes import (
    FirstWrites,
    outdated_by_put_back,
    writes_in_place,
)


def by_data(p: Any) -> None:
    p.data.mul_(2)


def without_gradients(p: Any) -> None:
    with torch.no_grad():
        p[0] = 5


def detached(p: Any) -> None:
    p.detach().view(-1).zero_()


def into(p: Any) -> None:
    with torch.no_grad():
        torch.add(p, 1, out=p)


def many(p: Any) -> None:
    with torch.no_grad():
        torch._foreach_add_([p, p.new_zeros(2)], 1)


def by_array(p: Any) -> None:
    p.detach().numpy()[:] = 3


def by_asarray(p: Any) -> None:
    np.asarray(p.detach())[0] = 3


def resized(p: Any) -> None:
    p.data.resize_(9)


@pytest.mark.parametrize(
    "write",
    [by_data, without_gradients, detached, into, many, by_array, by_asarray, resized],
)
def test_a_write_is_put_back(write: Any) -> None:
    p = nn.Parameter(torch.rand(4))
    before, address = p.detach().clone(), p.data_ptr()
    writes = FirstWrites()
    with writes.watching():
        write(p)
        write(p)
    writes.put_back()
    assert torch.equal(p.detach().flatten()[:4], before)
    assert p.data_ptr() == address or write is resized
    assert not writes.written


def test_what_is_made_inside_is_not_copied() -> None:
    p, writes = torch.rand(4), FirstWrites()
    with writes.watching():
        y = p + 1
        y.mul_(2).relu_()
        y.view(2, 2)[0].zero_()
    assert not writes.written
    assert writes.known == []


def test_a_view_of_an_operand_is_not_made_inside() -> None:
    p, writes = torch.rand(4), FirstWrites()
    before = p.clone()
    with writes.watching():
        torch.ops.aten._unsafe_view(p, [2, 2]).zero_()
    assert writes.has_written(p)
    writes.put_back()
    assert torch.equal(p, before)


def test_batch_norms_write_without_saying_so() -> None:
    layer: Any = nn.BatchNorm1d(3).train()
    writes = FirstWrites()
    with writes.watching():
        layer(torch.rand(4, 3))
    assert writes.has_written(layer.running_mean)
    writes.put_back()
    assert torch.equal(layer.running_mean, torch.zeros(3))
    assert int(layer.num_batches_tracked) == 0


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_is_put_back() -> None:
    table, writes = torch.eye(2).to_sparse(), FirstWrites()
    with writes.watching():
        table.mul_(2)
    writes.put_back()
    assert torch.equal(table.to_dense(), torch.eye(2))


def test_operators_of_higher_order_may_write_to_all() -> None:
    p, writes = torch.rand(2), FirstWrites()
    region: Any = torch.ops.higher_order.wrap_with_set_grad_enabled
    with writes.watching():
        region(False, lambda x: x.mul_(2), p)  # as torch takes it
    assert writes.has_written(p)


def test_values_can_be_read_inside_and_dynamo_captures() -> None:
    with FirstWrites().watching():
        assert reads_values()
        graphs: list[Any] = []

        def backend(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert len(graphs) == 1


def test_what_was_computed_inside_is_outdated_afterwards() -> None:
    told: list[int] = []
    outdated_by_put_back(lambda: told.append(0))  # nothing is watched
    writes = FirstWrites()
    with writes.watching():
        outdated_by_put_back(lambda: told.append(1))
    assert told == []
    writes.put_back()
    assert told == [1]


def test_programs_say_if_they_write() -> None:
    class Model(nn.Module):
        b: Any

        def __init__(self, write: bool) -> None:  # noqa: FBT001  # a parameter
            super().__init__()
            self.write = write
            self.register_buffer("b", torch.ones(2))

        def forward(self, x: Any) -> Any:
            if self.write:
                self.b.add_(1)
            return x + self.b

    for write in (True, False):
        program = torch.export.export(Model(write), (torch.ones(2),), strict=False)
        assert writes_in_place(program.module(check_guards=False)) is write

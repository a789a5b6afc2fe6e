"""Arguments of calls by the schema of their operator."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.aten import ops
from tests.torch_programs import traced

VECTOR, MATRIX = torch.ones(4), torch.ones(4, 4)
INDEX = torch.tensor([0, 1])


def test_numbers_that_meet_elements():
    assert list(ops.numbers(traced(lambda x: x + 3, VECTOR))) == [("other", 3.0)]
    clamp = traced(lambda x: x.clamp(-1, 2.5), VECTOR)
    assert list(ops.numbers(clamp)) == [("min", -1.0), ("max", 2.5)]
    fill = traced(lambda x, m: x.masked_fill(m > 0, -1e30), VECTOR, VECTOR)
    assert list(ops.numbers(fill)) == [("value", -1e30)]
    assert not list(ops.numbers(traced(lambda x: x.sum(0), VECTOR)))


def test_arguments_by_name():
    node = traced(lambda x: x.sum(0, dtype=torch.float64), VECTOR)
    assert ops.argument(node, "dtype") is torch.float64
    assert ops.argument(node, "keepdim") is False
    assert ops.argument(node, "nothing") is None
    assert ops.has_argument(node, "keepdim")
    assert not ops.has_argument(node, "nothing")
    assert ops.position(node, "keepdim") == (2, False)
    assert ops.position(node, "dtype") == (3, True)
    with pytest.raises(LookupError, match="has no argument 'nothing'"):
        ops.position(node, "nothing")


def test_the_slots_of_tensors_hold_what_is_given_there():
    plus = traced(lambda x: x + 2.0, VECTOR)
    assert [type(slot).__name__ for slot in ops.tensor_slots(plus)] == [
        "Node",
        "float",
    ]
    cat = traced(lambda x, y: torch.cat([x, y]), VECTOR, MATRIX[0])
    assert [slot.name for slot in ops.tensor_slots(cat)] == ["args_0", "args_1"]
    linear = traced(torch.nn.functional.linear, VECTOR, MATRIX)
    assert list(ops.tensor_slots(linear))[2] is None
    put = traced(lambda x, i, y: x.index_put((i,), y), VECTOR, INDEX, VECTOR[:2])
    names = [slot.name for slot in ops.tensor_slots(put)]
    assert names == ["args_0", "args_1", "args_2"]


def test_an_op_that_writes_to_its_first_argument_is_told():
    assert ops.writes_first(traced(lambda x: x.clone().add_(1), VECTOR))
    assert not ops.writes_first(traced(lambda x: x.add(1), VECTOR))

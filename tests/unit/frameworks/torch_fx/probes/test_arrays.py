import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.probes.runner import (
    TensorValues,
    floats,
    to_array,
    views_of,
)


def test_an_array_is_a_copy_in_float64():
    tensor = torch.tensor([1.5, 2.0], dtype=torch.bfloat16, requires_grad=True)
    array = to_array(tensor)
    with torch.no_grad():
        tensor.zero_()
    assert (array.dtype, array.tolist()) == ("float64", [1.5, 2.0])


def test_complex_numbers_are_pairs():
    assert to_array(torch.tensor([1 + 2j]).conj()).tolist() == [[1.0, -2.0]]


def test_only_floats_are_taken_out_of_a_structure():
    found = floats({"a": [torch.zeros(1), torch.zeros(1, dtype=torch.int64)], "b": 2.0})
    assert len(found) == 1


def test_views_of_an_operand_are_known_by_their_elements():
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    turned = views_of([x.mT], [y, x])
    assert turned == views_of([y.mT], [x, y])
    assert turned != views_of([x.mT], [x, y])  # another operand
    assert turned != views_of([x.view(3, 2)], [y, x])
    assert views_of([x + y], [x, y]) is None
    assert views_of([], [x]) is None
    assert views_of([x.view(torch.int32).view(torch.float16)], [x]) is None
    parts = views_of(list(x.unbind()), [x])
    assert parts is not None
    assert len(parts) == 2
    assert views_of(list(x.unbind())[::-1], [x]) != parts


def test_values_are_read_in_row_major_order_and_compared_with_a_limit():
    values = TensorValues(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.half).mT)
    assert values.block(1, 3).tolist() == [3, 2]
    assert not values.exceeds(4)
    assert values.exceeds(3)
    assert TensorValues(torch.tensor([1.0, float("nan")])).exceeds(4)
    assert not TensorValues(torch.zeros(0)).exceeds(0)

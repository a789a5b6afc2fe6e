import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.probes.arrays import floats, to_array


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

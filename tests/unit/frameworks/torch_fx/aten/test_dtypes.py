"""Names of dtypes, and the numbers of constants that a narrow format has not."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.aten.ops import dtype_name, edges_of, torch_dtype

MASK = torch.triu(torch.full((16, 16), torch.finfo(torch.float32).min), 1)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
def test_a_dtype_has_one_name(name: str) -> None:
    assert dtype_name(torch_dtype(name)) == name


@pytest.mark.parametrize(
    ("tensor", "numbers"),
    [
        (torch.tensor(1e9), (1e9,)),
        (torch.tensor([0.0, -1e9, 0.5]), (-1e9,)),
        (torch.full((3,), 0.5), ()),
        (MASK, (torch.finfo(torch.float32).min,)),
        (torch.full((128,), 1e-8), (1e-8,)),
        (torch.linspace(0, 0.9999, 100), ()),
        (torch.tensor([10**9]), ()),
        (torch.zeros(0), ()),
        (torch.eye(3).to_sparse(), ()),
        (torch.ones(3, device="meta"), ()),
    ],
)
def test_numbers_that_a_narrow_format_has_not(
    tensor: Any, numbers: tuple[float, ...]
) -> None:
    assert edges_of(tensor) == pytest.approx(numbers)

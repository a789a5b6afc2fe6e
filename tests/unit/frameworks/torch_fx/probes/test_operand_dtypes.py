import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.probes.runner import (
    fits_float32,
    in_float32,
    paired,
    rounded,
    unrounded,
)

EXACT = torch.tensor([1.001, -1e30], dtype=torch.float64)


def test_operands_are_rounded_to_what_is_read():
    read = ([torch.zeros(2, dtype=torch.bfloat16), 3], {"weight": None})
    args, kwargs = paired(read, ([EXACT, 3], {"weight": None}), rounded)
    assert torch.equal(args[0], EXACT.bfloat16())
    assert (args[1], kwargs) == (3, {"weight": None})


def test_what_is_brought_into_range_is_so_here():
    assert rounded(torch.zeros(2, dtype=torch.float16), EXACT)[1] == -65504


def test_operands_come_back_in_the_dtype_of_the_reference():
    low = EXACT.bfloat16()
    wide = unrounded(EXACT, low)
    assert wide.dtype == torch.float64
    assert torch.equal(wide, low.double())
    assert torch.equal(unrounded(EXACT, torch.zeros(3)), EXACT)


def test_another_structure_joins_with_itself():
    (args, _) = paired(([[EXACT, EXACT]], {}), ([EXACT], {}), rounded)
    assert torch.equal(args[0][0], EXACT)


LOW = EXACT.bfloat16()


@pytest.mark.parametrize(
    ("exact", "read", "fits"),
    [
        ([EXACT, EXACT, 2], [LOW, LOW.half(), 2], True),
        ([EXACT, EXACT], [LOW, LOW.float()], False),
        ([EXACT, torch.float64], [LOW, torch.float32], False),
        ([EXACT, EXACT], [LOW, None], False),
        ([EXACT], [torch.zeros(3, dtype=torch.bfloat16)], False),
    ],
)
def test_products_of_16_bits_fit_float32(exact, read, fits):
    assert fits_float32((exact, {}), (read, {})) == fits
    if fits:
        given, _ = paired((exact, {}), (read, {}), in_float32)
        assert given[0].dtype == torch.float32
        assert torch.equal(given[0], LOW.float())

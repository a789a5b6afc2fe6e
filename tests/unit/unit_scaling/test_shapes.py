"""Factors are read from shapes."""

import pytest

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling import rules, shapes


def test_elements_are_counted():
    assert (shapes.count((2, 3, 4)), shapes.count(())) == (24, 1)


@pytest.mark.parametrize(
    ("shape", "copies"), [((4, 3), 1), ((1, 3), 4), ((3,), 4), ((1,), 12), ((), 12)]
)
def test_copies_of_broadcasting_are_counted(shape, copies):
    assert shapes.copies(shape, (4, 3)) == copies


def test_copies_of_missing_extents_are_counted():
    assert shapes.copies((3, 2), (5, 4, 3, 2)) == 20


def test_linear_reads_rows_and_fans():
    found = shapes.of_linear((5, 7, 4), (9, 4))
    assert found == rules.linear(fan_in=4, fan_out=9, batch=35)
    readout = shapes.of_linear((5, 7, 4), (9, 4), readout=True)
    assert readout.forward == 1 / 4


def test_matmul_reads_copies():
    found = shapes.of_matmul((6, 2, 4), (4, 9), (6,))
    assert found == rules.matmul(rows=2, inner=4, columns=9, right_copies=6)


def test_a_vector_is_no_matrix():
    with pytest.raises(ArgumentError, match=r"shapes \(3,\) and \(3, 4\); want two"):
        shapes.of_matmul((3,), (3, 4), ())


@pytest.mark.parametrize("batch", [(), (6,)])
def test_a_convolution_reads_positions(batch):
    x, weight = (*batch, 8, 10, 12), (4, 2, 3, 5)
    result = shapes.after_conv(x, weight, (1, 2), (0, 1), (2, 1))
    assert result == [6, 5]
    found = shapes.of_conv(x, weight, result, 4)
    extent = {"fan_in": 8, "fan_out": 4, "taps": 15, "groups": 4}
    assert found == rules.conv(
        **extent, inputs=120, outputs=30, batch=6 if batch else 1
    )


def test_a_norm_reads_rows():
    assert shapes.of_norm((5, 7, 4, 2), 2) == rules.norm(batch=35)


@pytest.mark.parametrize("one", [(), (1,), (1, 1)])
def test_one_element_is_no_second_unit_number(one):
    assert shapes.of_add((4, 3), one, (4, 3)).forward == 1.0
    assert shapes.of_add((4, 3), (4, 1), (4, 3)) == rules.add(right=3)


def test_numbers_are_constrained_factors_in_order():
    free = shapes.numbers("silu_glu", 1.0, None)
    assert len(free) == 3
    assert free[0] != free[2]
    assert shapes.numbers("silu_glu", 1.0, "to_right_grad_scale") == (free[2],) * 3
    assert shapes.numbers("softmax", 1.0, None, (("size", 8),))[0] > 1

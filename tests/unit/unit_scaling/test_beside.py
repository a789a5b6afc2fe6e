"""Tensors of two runs: what is a pair, and what has no partner."""

import pytest

from amprewrite.unit_scaling.tracking import (
    Scale,
    Tracked,
    alone,
    paired,
    without_factors,
)


def scale(std):
    return Scale(std, std, 4 * std, 0.0)


def tracked(name, std=1.0, shape=(4, 4), **rest):
    return Tracked(name, "", shape, scale(std), scale(std / 2), **rest)


def names(table):
    """Return for each row its name in both runs, told by the deviation."""
    return [
        tuple(found and found.std for found in row.scales("forward"))
        for row in table.rows
    ]


def test_tensors_are_paired_by_name_and_shape_in_their_order():
    before = [tracked("linear", 1.0), tracked("gelu", 2.0), tracked("linear_1", 3.0)]
    after = [tracked("linear", 10.0), tracked("gelu", 20.0), tracked("linear_1", 30.0)]
    table = paired(before, after)
    assert table.heads == ("before", "after")
    assert names(table) == [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
    assert table["gelu"].scales("backward") == (scale(1.0), scale(10.0))


def test_a_tensor_of_one_run_has_no_partner_and_shifts_no_other():
    before = [tracked("linear", 1.0), tracked("linear_1", 3.0, (4, 8))]
    after = [
        tracked("linear", 10.0),
        tracked("dropout", 5.0),
        tracked("linear_1", 30.0, (4, 8)),
    ]
    assert names(paired(before, after)) == [(1.0, 10.0), (None, 5.0), (3.0, 30.0)]
    assert names(paired(after, before)) == [(10.0, 1.0), (5.0, None), (30.0, 3.0)]


def test_tensors_of_another_shape_are_no_pair():
    found = paired([tracked("linear", 1.0, (4,))], [tracked("linear", 2.0, (8,))])
    assert names(found) == [(1.0, None), (None, 2.0)]


def test_parameters_are_paired_by_their_whole_name():
    def of(name, std):
        return tracked(name, std, parameter=True)

    found = paired([of("w_1", 1.0), of("w_2", 2.0)], [of("w_2", 20.0)])
    assert names(found) == [(1.0, None), (2.0, 20.0)]


def test_a_function_is_paired_with_its_name_in_a_captured_program():
    found = paired(
        [tracked("cross_entropy", 1.0)], [tracked("cross_entropy_loss", 2.0)]
    )
    assert names(found) == [(1.0, 2.0)]


def test_a_tensor_is_shown_as_its_readers_get_it():
    rows = [
        tracked("scale", 3.0, scaled=""),
        tracked("linear", 8.0),
        tracked("scale_1", 1.0, scaled="linear"),
        tracked("scale_2", 1.0, scaled="scale_1"),
        tracked("gelu", 0.5),
    ]
    linear, gelu = without_factors(rows)
    assert (linear.name, linear.forward, linear.backward) == (
        *("linear", scale(1.0)),
        scale(4.0),
    )
    assert gelu is rows[-1]


def test_a_tensor_with_several_products_is_shown_as_it_is():
    rows = [
        tracked("add", 2.0),
        tracked("scale", 1.0, scaled="add"),
        tracked("scale_1", 4.0, scaled="add"),
    ]
    assert without_factors(rows) == [rows[0]]


def test_an_operator_of_the_user_that_is_called_scale_is_a_tensor():
    rows = [tracked("scale", 2.0)]
    assert without_factors(rows) == rows
    assert names(alone(rows)) == [(2.0,)]


@pytest.mark.parametrize("rows", [[], [tracked("relu")]])
def test_a_run_without_a_partner_is_shown(rows):
    assert len(paired(rows, []).rows) == len(rows)

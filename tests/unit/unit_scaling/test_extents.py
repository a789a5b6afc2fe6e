"""Rules of extents count the terms of sums."""

import pytest

from amprewrite.unit_scaling import rules


def test_linear():
    forward, backward, joined = rules.linear(fan_in=4, fan_out=9, batch=16)
    assert forward == 1 / 2
    assert backward == {"input": 1 / 3, "weight": 1 / 4, "bias": 1 / 4}
    assert joined == ("input",)


def test_a_readout_divides_by_its_fan_in():
    plain = rules.linear(fan_in=4, fan_out=9, batch=16)
    readout = rules.linear_readout(fan_in=4, fan_out=9, batch=16)
    assert (readout.forward, readout.backward) == (1 / 4, plain.backward)


def test_matmul_counts_the_copies_of_broadcasting():
    found = rules.matmul(rows=4, inner=16, columns=9, right_copies=25)
    assert found.forward == 1 / 4
    assert found.backward == {"left": 1 / 3, "right": 1 / 10}


def test_a_convolution_of_one_tap_is_linear():
    extent = {"fan_in": 4, "fan_out": 9}
    found = rules.conv(**extent, taps=1, inputs=8, outputs=8, batch=2)
    assert found.forward == 1 / 2
    assert found.backward == {"input": 1 / 3, "weight": 1 / 4, "bias": 1 / 4}


def test_a_stride_and_groups_take_terms_away():
    extent = {"fan_in": 8, "fan_out": 8, "taps": 4, "inputs": 32, "batch": 1}
    whole = rules.conv(**extent, outputs=32)
    half = rules.conv(**extent, outputs=16, groups=2)
    assert half.forward**-2 == pytest.approx(whole.forward**-2 / 2)
    assert half.backward["input"] ** -2 == pytest.approx(
        whole.backward["input"] ** -2 / 4
    )


def test_rows_of_an_embedding_share_the_tokens():
    found = rules.embedding(vocabulary=100, tokens=4)
    assert (found.forward, found.backward) == (1.0, {"weight": 5.0})


def test_add_counts_the_copies_of_broadcasting():
    found = rules.add(right=16)
    assert found.forward == pytest.approx(2**-0.5)
    assert found.backward == {"left": 1.0, "right": 1 / 4}


def test_a_residual_keeps_the_sum_of_squares():
    found = rules.residual(tau=0.5).backward
    assert found["branch"] ** 2 + found["skip"] ** 2 == pytest.approx(1)
    assert found["branch"] / found["skip"] == pytest.approx(0.5)


def test_rules_only_compute_with_extents():
    """An extent of a tracer passes through; no number is made of it."""

    class Traced:
        def __init__(self, text):
            self.text = text

        def __pow__(self, power):
            return Traced(f"{self.text}**{power}")

    found = rules.linear(fan_in=4, fan_out=9, batch=Traced("batch"))
    assert found.backward["weight"].text == "batch**-0.5"

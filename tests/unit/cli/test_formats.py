"""A number is shown in formats; mistakes are said in one line."""

import json

from tests.command_line import done, mistake


def test_a_number_is_shown_in_one_format():
    text = done("format", "0.15625", "--in", "fp16")
    row = " ".join(text.splitlines()[3].split())
    assert row == "f16 0 01100 0100000000 0.15625 0.156128 0.156372 2^-13 exact"


def test_without_a_format_there_are_all():
    text = done("format", "0.1")
    for name in ("f64", "bf16", "f8e4m3fn", "f4e2m1fn"):
        assert f" {name} " in text
    row = text.split("bf16")[1].splitlines()[0].split()
    assert row[-3:] == ["2^-11", "+9.77e-05", "+0.200"]


def test_numbers_with_a_sign_and_specials_are_no_options():
    for number, value in (
        ("-1.5", -1.5),
        ("-inf", "-inf"),
        ("nan", "nan"),
        ("-0x1p0", -1),
    ):
        found = json.loads(done("format", number, "--in", "fp16", "--json"))
        assert found["number"] == number
        assert found["formats"][0]["value"] == value


def test_json_has_every_part():
    found = json.loads(done("format", "1/3", "--in", "bf16", "--in", "e5m2", "--json"))
    first, second = found["formats"]
    assert (first["format"], second["format"]) == ("bfloat16", "float8_e5m2")
    assert (first["sign"], first["exponent"], first["fraction"]) == (
        *("0", "01111101", "0101011"),
    )
    assert first["hex"] == "0x1.5600000000000p-2"
    assert abs(first["error_in_ulp"] - 1 / 3) < 1e-9
    assert first["error"] > 0


def test_mistakes_are_said():
    assert "'one' is no number; want a decimal" in mistake("format", "one")
    text = mistake("format", "1", "--in", "fp17")
    assert "unknown float format 'fp17'" in text
    assert "exponent of '1e9999'" in mistake("format", "1e9999", "--json")

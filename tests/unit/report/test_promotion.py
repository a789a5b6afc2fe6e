"""Promotion as an answer with its reason, and as tables."""

import io
import json

import pytest
from rich.console import Console

from amprewrite.dtypes import SYSTEMS, Operand
from amprewrite.dtypes.systems.jax import JaxRules
from amprewrite.errors import PromotionError
from amprewrite.report import promotion


def text_of(table):
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("bfloat16", Operand("bfloat16")),
        ("bf16", Operand("bfloat16")),
        ("b1", Operand("bool")),
        ("f8e4m3fn", Operand("float8_e4m3fn")),
        ("f32[]", Operand("float32", ndim=0)),
        ("i32*", Operand("int32", weak=True)),
        ("i64[300]", Operand("int64", ndim=0, value=300)),
        ("f32[1e-3]", Operand("float32", ndim=0, value=1e-3)),
        ("f64[2.0]*", Operand("float64", ndim=0, weak=True, value=2.0)),
        ("b1[True]", Operand("bool", ndim=0, value=True)),
        ("f32[]*", Operand("float32", ndim=0, weak=True)),
        ("1", 1),
        ("-2.5", -2.5),
        ("1j", 1j),
        ("True", True),
        ("False", False),
    ],
)
def test_operands(text, operand):
    found = promotion.parse_operand(text)
    assert (found, type(found)) == (operand, type(operand))


def test_a_value_is_a_number():
    with pytest.raises(
        PromotionError, match=r"'i64\[x\]': found 'x' in \[\]; want a n"
    ):
        promotion.parse_operand("i64[x]")
    with pytest.raises(PromotionError, match="want one that int8 holds"):
        promotion.parse_operand("i8[300]")
    for text in ("i8]", "i8[", "i8[]]", "*i8", "[1]"):
        with pytest.raises(PromotionError, match=r"unknown dtype|found .* in \[\]"):
            promotion.parse_operand(text)


def test_an_answer_is_a_sum_and_its_reasons():
    assert str(promotion.answer(["u64", "i8"], x64=True)).splitlines() == [
        "uint64 + int8 = weak float64 (JAX, 64 bits)",
        "  uint64 -> float*",
        "  int8 -> int16 -> int32 -> int64 -> float*",
        "  float* alone is weak float64",
    ]


def test_an_answer_as_json():
    found = promotion.answer(["f16", "1j"], "torch").to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["operands"], found["dtype"]) == (["float16", "1j"], "complex32")


def test_an_answer_for_an_op():
    found = promotion.op_answer("layer_norm", ["bf16", "f32", "bf16"], "torch")
    head, *lines = str(found).splitlines()
    assert head.startswith("layer_norm(bfloat16, float32, bfloat16) computes float32,")
    assert head.endswith(", gives bfloat16 (torch)")
    assert lines == [
        "  rule mixed",
        "  bfloat16: no cast",
        "  float32: no cast",
        "  bfloat16: cast to float32",
    ]
    data = found.to_json()
    assert json.loads(json.dumps(data)) == data
    assert (data["casts"], data["needs_equal"]) == ([None, None, "float32"], False)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_table_has_a_row_for_each_common_dtype(system):
    text = text_of(promotion.promotion_table(system, x64=True))
    assert "f32" in text
    assert "\n  c128 " in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_table_marks_what_is_weak_and_what_is_undefined():
    assert "f64*" in text_of(promotion.promotion_table("jax", x64=True))
    assert "f64*" not in text_of(promotion.promotion_table("jax"))
    assert "error" in text_of(promotion.promotion_table("torch"))


def test_a_table_as_json_has_every_dtype():
    found = promotion.promotion_json("jax")
    assert json.loads(json.dumps(found)) == found
    table = found["table"]
    assert table["bfloat16"]["float16"] == {"dtype": "float32", "weak": False}
    assert table["float8_e4m3fn"]["float16"] is None
    assert set(table) == JaxRules.dtypes


def test_an_unknown_system():
    for function in (promotion.promotion_table, promotion.promotion_json):
        with pytest.raises(PromotionError, match="did you mean 'numpy'"):
            function("nunpy")

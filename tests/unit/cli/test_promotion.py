"""Promotion is answered, shown and compared."""

import json

import pytest

from amprewrite.dtypes import SYSTEMS
from amprewrite.report.promotion import differences_page
from tests.command_line import done, mistake


def test_promote_says_what_and_why():
    assert done("promote", "int32", "bf16").splitlines() == [
        "int32 + bfloat16 = bfloat16 (JAX, 32 bits)",
        "  int32 -> int64 -> float* -> bfloat16",
    ]


def test_promote_in_another_system():
    text = done("promote", "f16", "f32[]", "--system", "torch")
    assert text.startswith("float16 + 0-d float32 = float16 (torch)\n")
    assert "adapt to arrays" in text


def test_promote_by_value():
    for value, dtype in [(127, "int8"), (300, "int16")]:
        text = done("promote", "i8", f"i64[{value}]", "--system", "numpy1")
        assert text.startswith(f"int8 + 0-d int64 = {dtype} (NumPy 1)\n")
        assert f"of value {value} counts as uint" in text
    text = mistake("promote", "f32", "f64[]", "--system", "numpy1")
    assert "float32 or float64, which the unknown value of 0-d float64 decides" in text


def test_promote_with_64_bits():
    assert "= weak float32" in done("promote", "i64", "1.0")
    assert "= weak float64" in done("promote", "i64", "1.0", "--x64")


def test_promote_json():
    assert json.loads(done("promote", "bf16", "f16", "--json")) == {
        "operands": ["bfloat16", "float16"],
        "system": "jax",
        "x64": False,
        "dtype": "float32",
        "weak": False,
        "why": ["bfloat16 -> float32", "float16 -> float32"],
    }


def test_promote_says_what_casts_an_op_needs():
    args = ("promote", "bf16", "f32", "--op", "matmul", "--system", "torch")
    assert done(*args).splitlines() == [
        "matmul(bfloat16, float32) computes float32, gives float32 (torch)",
        "  rule same; torch refuses unequal dtypes",
        "  bfloat16: cast to float32",
        "  float32: no cast",
    ]
    found = json.loads(done(*args, "--json"))
    assert (found["casts"], found["dtype"]) == (["float32", None], "float32")


def test_promote_explains_each_step_of_a_rule():
    args = ("promote", "bf16", "f32", "i64", "--op", "index_add", "--explain")
    assert done(*args, "--system", "torch").splitlines()[1:] == [
        "  rule follow_self; torch refuses unequal dtypes",
        "  1. float32 is no operand that promotes: an index, mask or count",
        "  2. bfloat16 make bfloat16: arrays make bfloat16",
        "  3. it computes in bfloat16",
        "  4. it gives bfloat16",
        "  bfloat16: no cast",
        "  float32: no cast",
        "  int64: cast to bfloat16",
    ]
    lifted = json.loads(done("promote", "i32", "--op", "mean", "--explain", "--json"))
    assert lifted["steps"][-2:] == [
        "rule int_to_float lifts it: it computes in float32",
        "it gives float32",
    ]
    assert "want --op OP" in mistake("promote", "i32", "--explain")


@pytest.mark.parametrize("system", SYSTEMS)
def test_promote_table(system):
    text = done("promote", "--table", system)
    assert "f32" in text
    found = json.loads(done("promote", "--table", system, "--json"))
    assert found["table"]["float32"]["float32"] == {"dtype": "float32", "weak": False}


def test_promote_differences():
    assert done("promote", "--differences") == differences_page()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["flot32", "int8"], "did you mean 'float32'?"),
        (["float8_e4m3fn", "bfloat16"], "have no common dtype in system 'jax'"),
        (["bf16", "f16", "--system", "numpy"], "there is no bfloat16"),
        (["f32", "f16", "--system", "torhc"], "did you mean 'torch'?"),
        (["--table", "jaxx"], "did you mean 'jax'?"),
        (["--table", "jaxx", "--json"], "did you mean 'jax'?"),
        (["f32", "--op", "matmull"], "did you mean 'matmul'?"),
        (["f32", "c64", "--op", "copy"], "which drops the imaginary part"),
        (["--op", "matmul"], "want one of A B"),
        ([], "want one of A B"),
        (["f32", "--table", "jax"], "want one of A B"),
        (["--differences", "--json"], "want --table SYSTEM --json"),
    ],
)
def test_mistakes(args, says):
    assert says in mistake("promote", *args)

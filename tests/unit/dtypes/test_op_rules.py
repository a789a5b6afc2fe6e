from itertools import pairwise
from pathlib import Path

import pytest

from amprewrite import load_policy
from amprewrite.dtypes import op_rules
from amprewrite.dtypes.op_rules import OP_RULES, rule_of
from amprewrite.dtypes.processor import Behaviour, Processor
from amprewrite.errors import PromotionError


@pytest.mark.parametrize(
    ("op", "behaviour", "needs_equal"),
    [
        ("matmul", Behaviour.SAME, True),
        ("add", Behaviour.PROMOTE, False),
        ("exp", Behaviour.INT_TO_FLOAT, False),
        ("sum", Behaviour.MINIMUM, False),
        ("eq", Behaviour.BOOL, False),
        ("isclose", Behaviour.BOOL, True),
        ("index_put", Behaviour.FOLLOW_SELF, True),
        ("copy", Behaviour.FOLLOW_SELF, False),
        ("layer_norm", Behaviour.MIXED, False),
        ("argmax", Behaviour.FIXED, False),
        ("transpose", Behaviour.PRESERVE, False),
    ],
)
def test_some_rules(op, behaviour, needs_equal):
    rule = rule_of(op)
    assert (rule.behaviour, rule.needs_equal) == (behaviour, needs_equal)


def test_a_rule_gives_casts():
    found = Processor("torch").apply(
        rule_of("index_put"), "bfloat16", "int64", "int64", "float32"
    )
    assert found.casts == (None, None, None, "bfloat16")


def test_complex_numbers_stay_where_floats_have_a_minimum():
    found = Processor("torch").apply(rule_of("float_power"), "complex64", "float32")
    assert (found.computes, found.dtype) == ("complex128", "complex128")


def test_an_op_without_a_rule():
    with pytest.raises(PromotionError, match=r"op 'matmull': .* mean 'matmul'"):
        rule_of("matmull")


def test_every_op_is_one_that_policies_know():
    assert not set(OP_RULES) - set(load_policy("bf16").ops)


def test_every_contraction_has_a_rule():
    allowed = {op for op, e in load_policy("bf16").ops.items() if e.op_class == "allow"}
    fused = {"ragged_dot"}
    private = {op for op in allowed if op.startswith(("_", "transformers."))}
    assert allowed - set(OP_RULES) == fused | private


def test_the_table_is_sorted():
    text = Path(op_rules.__file__).with_suffix(".toml").read_text("utf-8")
    lines = [x for x in text.splitlines() if x and not x.startswith("#")]
    assert len(lines) == len(OP_RULES)
    assert all(a < b for a, b in pairwise(OP_RULES))


def test_a_dtype_stands_where_it_is_wanted():
    for op, rule in OP_RULES.items():
        wants = rule.behaviour in (Behaviour.MINIMUM, Behaviour.FIXED)
        assert wants == bool(rule.dtype), op

"""The rules by which casts are shared, folded and saturated."""

from amprewrite.passes.placement.casts import ON_THE_SPOT, CastKey, CastRules
from tests.placement_problem import situation_of

TEXT = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    %s: f32[] input
    %t: i64[8] parameter
    a = linear(%x, %w) -> %h: f32[4,8]
    b = mul(%h, %s) -> %m: f32[4,8]
      | operand_rule="promote"
    c = softmax(%m) -> %p: f32[4,8]
      | has_dtype_argument=true
    d = add_(%p, %x) -> %q: f32[4,8]
      | mutates=[0]
    e = size(%q) -> %n: i64[2]
      | operand_rule="any"
    return %q
"""


def test_uses_share_a_cast_until_the_value_is_written() -> None:
    at = situation_of(TEXT)
    rules, ops = CastRules(at, fold=True), at.graph.ops
    before = rules.key(ops[2], 0, "p", "bfloat16")
    assert before == rules.key(None, 0, "p", "bfloat16")
    assert before == CastKey("p", "bfloat16", "", 0, False, 1)
    rules.write(ops[2])
    assert rules.key(ops[3], 0, "p", "bfloat16") == before
    rules.write(ops[3])
    assert rules.key(ops[3], 0, "p", "bfloat16").version == 1
    assert rules.key(ops[3], 1, "x", "bfloat16").version == 0


def test_kernels_fold_casts_in_their_own_ways() -> None:
    at = situation_of(TEXT)
    ops = {op.name: op for op in at.graph.ops}
    rules = CastRules(at, fold=True)
    assert rules.folding(ops["e"], 0) == "kernel"
    assert rules.folding(ops["c"], 0) == "dtype"
    assert rules.folding(ops["a"], 1) == ""
    assert rules.folding(ops["b"], 1) == "kernel"
    assert rules.folding(ops["b"], 0) == ""
    assert CastRules(at, fold=True, scalars=False).folding(ops["b"], 1) == ""
    assert rules.promotes(ops["b"])
    assert not rules.promotes(ops["a"])


def test_a_promoting_kernel_converts_to_the_widest_stored_dtype() -> None:
    text = """
        %x: f32[4,8] input
        %y: f32[4,8] input
        %s: f32[] input
        a = mul(%x, %y, %s) -> %h: f32[4,8]
          | operand_rule="promote"
        b = linear(%x, %y) -> %k: f32[4,8]
        return %h, %k
    """
    at = situation_of(text)
    rules, (mul, linear) = CastRules(at, fold=True), at.graph.ops
    low = {"x": "bfloat16", "y": "bfloat16", "s": "float32"}
    assert rules.promotion(mul, low) == "bfloat16"  # a scalar widens nothing
    assert rules.promotion(mul, {**low, "y": "float32"}) == "float32"
    assert rules.promotion(linear, low) == ""


def test_results_are_cast_where_they_are_made_if_something_reads_them() -> None:
    at = situation_of(TEXT)
    rules, op = CastRules(at, fold=True), at.graph.ops[2]
    key = CastKey("p", "float32", "", ON_THE_SPOT, False, 1)
    assert rules.made_key(op, "p", "float32") == key
    assert rules.made_uses("p") == [("d", 0)]
    assert rules.made_uses("n") == []


def test_an_operand_that_is_written_is_read_as_it_is_stored() -> None:
    at = situation_of(TEXT)
    rules, op = CastRules(at, fold=True), at.graph.ops[3]
    assert not rules.may_cast(op, 0)
    assert rules.may_cast(op, 1)


def test_a_low_copy_is_kept_of_what_the_model_itself_mixes_alone() -> None:
    text = """
        %x: f32[4,8] input
        %t: f64[8,8] parameter
        %w: f32[8,8] parameter
        a = linear(%x, %w) -> %h: f32[4,8]
        b = mul(%t, %t) -> %u: f64[8,8]
        return %h, %u
    """
    rules = CastRules(situation_of(text), fold=True)
    assert rules.is_static("t")
    assert rules.is_static("w")
    assert not rules.is_static("x")
    assert rules.may_copy("t")
    assert not rules.may_copy("w")


def test_a_scalar_adapts_to_tensors_and_not_to_scalars() -> None:
    at = situation_of(TEXT)
    mul = at.graph.ops[1]
    rules = CastRules(at, fold=True)
    assert rules.promoted(mul) == ["h"]
    assert rules.adapts(mul, "s")
    assert not rules.adapts(mul, "h")


def test_masked_operands_saturate_where_they_become_low() -> None:
    text = TEXT.replace("| mutates=[0]", "| mutates=[0] masks=[1]")
    at = situation_of(text)
    rules, op = CastRules(at, fold=True), at.graph.ops[3]
    assert rules.key(op, 1, "x", "bfloat16").saturate
    assert not rules.key(op, 1, "x", "float32").saturate
    assert not rules.key(op, 1, "x", "bfloat16", folded=True).saturate
    assert not rules.key(op, 0, "p", "bfloat16").saturate

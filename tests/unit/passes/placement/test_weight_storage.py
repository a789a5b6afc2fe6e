"""Which weights are stored low: those that nobody reads in full."""

import dataclasses

import pytest

from amprewrite.policy import load_policy
from tests.plan_text import cast_lines, plan_of

TWO_USES = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    {other}
    return %h, %o
"""


def stored(text: str, *, training: bool = False) -> tuple[tuple[str, str], ...]:
    return plan_of(text, training=training).storage


def test_a_weight_that_every_use_reads_low_is_stored_low() -> None:
    text = TWO_USES.format(other="two = linear(%h, %w) -> %o: f32[4,8]")
    assert stored(text) == (("w", "bfloat16"),)


def test_a_weight_that_some_use_reads_in_full_is_stored_full() -> None:
    text = TWO_USES.format(other="sum = sum(%w) -> %o: f32[]")
    assert stored(text) == ()
    assert "%w: f32[8,8] -> bf16 for linear\n" in cast_lines(plan_of(text))


def test_a_weight_that_is_handed_back_is_stored_full() -> None:
    text = TWO_USES.format(other="t = transpose(%w) -> %o: f32[8,8] alias %w")
    assert stored(text) == ()


def test_a_weight_that_is_written_is_stored_full() -> None:
    other = "add = add(%w, %x) -> %o: f32[8,8] alias %w\n      | mutates=[0]"
    assert stored(TWO_USES.format(other=other)) == ()


def test_a_weight_that_is_read_low_because_another_one_is_is_stored_low() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %a: f32[8,8] parameter
        %b: f32[8,8] parameter
        pool = adaptive_avg_pool2d(%a, %b) -> %p: f32[8,8]
        linear = linear(%x, %a) -> %h: f32[4,8]
        return %h, %p
    """)
    assert plan.storage == (("a", "bfloat16"), ("b", "bfloat16"))
    assert not [cast for cast in plan.runtime_casts if cast.is_weight]


def test_when_training_no_parameter_changes_its_dtype() -> None:
    text = TWO_USES.format(other="two = linear(%h, %w) -> %o: f32[4,8]")
    plan = plan_of(text, training=True)
    assert plan.storage == ()
    assert "%w: f32[8,8] -> bf16 for linear, two\n" in cast_lines(plan)


def test_a_weight_is_stored_low_behind_views_and_full_casts() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        t = transpose(%w) -> %t: f32[8,8] alias %w
        guard = cast(%t) -> %g: f32[8,8]
          | dtype_argument="float32" operand_rule="any"
        linear = linear(%x, %g) -> %h: f32[4,8]
        return %h
    """)
    assert plan.storage == (("w", "bfloat16"),)
    assert plan.by_op["t"].precision == plan.by_op["guard"].precision == "bfloat16"
    assert plan.by_op["guard"].why == "follows a weight stored low"


def test_weights_that_are_joined_are_stored_alike() -> None:
    """Else the join would widen one that is stored low, at each call."""
    plan = plan_of("""
        %x: f32[4,8] input
        %a: f32[4,8] parameter
        %b: f32[4,8] parameter
        cat = cat(%a, %b) -> %c: f32[8,8]
        linear = linear(%x, %c) -> %h: f32[4,8]
        log = log(%b) -> %l: f32[4,8]
        return %h, %l
    """)
    assert plan.storage == ()
    assert plan.by_op["cat"].operands == ("float32", "float32")
    assert [c.value for c in plan.runtime_casts if c.is_weight] == ["c"]


TIED = """
    %ids: i64[4] input
    %w: f32[9,8] parameter
    embedding = embedding(%w, %ids) -> %e: f32[4,8]
    {use}
    return %y
"""
HEAD = "head = linear(%e, %w) -> %y: f32[4,9]"


@pytest.mark.parametrize(
    ("lookups", "use", "storage"),
    [
        ("full", HEAD, (("w", "bfloat16"),)),
        ("low", HEAD, (("w", "bfloat16"),)),
        ("full", "head = exp(%e) -> %y: f32[4,8]", ()),
        ("low", "head = exp(%e) -> %y: f32[4,8]", (("w", "bfloat16"),)),
        ("low", "head = exp(%w) -> %y: f32[9,8]", ()),
    ],
)
def test_a_table_is_stored_low_if_a_product_or_the_policy_wants_it(
    lookups: str, use: str, storage: tuple[tuple[str, str], ...]
) -> None:
    policy = dataclasses.replace(load_policy("bf16"), lookups=lookups)
    assert plan_of(TIED.format(use=use), policy).storage == storage


def test_rows_of_a_low_table_are_low() -> None:
    plan = plan_of(TIED.format(use=HEAD))
    assert plan.by_op["embedding"].results == ("bfloat16",)
    assert cast_lines(plan) == (
        "%w: f32[9,8] -> bf16 for embedding, head (storage)\n"
        "%y: bf16[4,9] -> f32 for output[0]"
    )


def test_a_tensor_filled_with_one_number_is_made_low_even_when_training() -> None:
    text = """
        %x: f32[4,8] input
        zeros = zeros() -> %z: f32[8,8]
        linear = linear(%x, %z) -> %h: f32[4,8]
        return %h
    """
    for training in (False, True):
        plan = plan_of(text, training=training)
        assert plan.by_op["zeros"].results == ("bfloat16",)
        assert cast_lines(plan).startswith("%x: f32[4,8] -> bf16 for linear\n%h")


def test_a_weight_that_only_a_promoting_op_reads_low_is_stored_low() -> None:
    policy = dataclasses.replace(load_policy("bf16"), weak_parameters=True)
    plan = plan_of(
        """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        %b: f32[8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        add = add(%h, %b) -> %a: f32[4,8]
        last = linear(%a, %w) -> %y: f32[4,8]
        return %y
        """,
        policy,
    )
    assert dict(plan.storage) == {"w": "bfloat16", "b": "bfloat16"}


def test_rows_of_a_table_that_others_want_low_begin_a_full_stream() -> None:
    text = """
        %ids: i64[4] input
        %table: f32[32,8] parameter
        %w: f32[8,8] parameter
        embed = embedding(%table, %ids) -> %e: f32[4,8]
        linear = linear(%e, %w) -> %h: f32[4,8]
        add = add(%e, %h) -> %a: f32[4,8]
        head = linear(%a, %table) -> %y: f32[4,32]
        return %y
    """
    plan = plan_of(text)
    assert dict(plan.storage)["table"] == "bfloat16"
    assert plan.by_op["embed"].results == ("bfloat16",)
    assert plan.by_op["add"].precision == "float32"
    (rows,) = [cast for cast in plan.runtime_casts if cast.to_dtype == "float32"][:1]
    assert (rows.value, rows.producer) == ("e", "embed")
    assert rows.why == "rows of a table that is stored low for other readers"

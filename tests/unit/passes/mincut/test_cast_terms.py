"""Which uses share a cast, and which casts cost nothing."""

from collections.abc import Mapping

from amprewrite.passes.mincut.shared_casts import Group
from tests.placement_problem import problem_of


def groups_of(
    text: str, *, keep_parameter_dtype: bool = False
) -> Mapping[tuple[object, ...], Group]:
    problem = problem_of(text, keep_parameter_dtype=keep_parameter_dtype)
    return {tuple(key): group for key, group in problem.groups.by_key.items()}


BLOCK = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    one = linear(%x, %w) -> %h: f32[4,8]
    two = linear(%x, %w) -> %k: f32[4,8]
    return %h
"""


def test_readers_share_a_cast() -> None:
    down = groups_of(BLOCK)["x", "bfloat16", "", 0, False, 1]
    assert len(down.uses) == 2
    assert down.cost == 32 * 6


def test_a_weight_has_a_cast_where_it_may_be_stored_full() -> None:
    assert groups_of(BLOCK)["w", "bfloat16", "", 0, False, 1].cost == 64 * 6


def test_a_weight_that_the_model_mixes_itself_is_cast_once_at_conversion() -> None:
    text = """
        %x: f32[4,8] input
        %w: f64[8,8] parameter
        add = add(%x, %w) -> %h: f64[4,8]
          | reads=["float32", "float32"]
        return %h
    """
    trained = problem_of(text, keep_parameter_dtype=True).constant
    assert trained - problem_of(text, keep_parameter_dtype=False).constant == 64 * (
        8 + 4
    )


def test_trained_weights_pay_for_their_casts() -> None:
    found = groups_of(BLOCK, keep_parameter_dtype=True)
    assert found["w", "bfloat16", "", 0, False, 1].cost == 64 * 6


def test_an_output_is_cast_back() -> None:
    assert groups_of(BLOCK)["h", "float32", "", 0, False, 1].up


def test_a_body_has_casts_of_its_own() -> None:
    text = BLOCK.replace(
        "two = linear(%x, %w) -> %k: f32[4,8]",
        'two = linear(%x, %w) -> %k: f32[4,8]\n      | region="loop"',
    )
    found = groups_of(text)
    assert ("x", "bfloat16", "", 0, False, 1) in found
    assert ("x", "bfloat16", "loop", 0, False, 1) in found
    assert ("w", "bfloat16", "loop", 0, False, 1) in found


def test_a_cast_in_a_loop_is_paid_at_each_turn_and_one_before_it_once() -> None:
    found = groups_of("""
        %x: f32[3,4,8] input
        %w: f32[8,8] parameter
        exp = exp(%x) -> %e: f32[3,4,8]
        loop.in0 = enter(%e) -> %s: f32[4,8]
          | region="loop"
        dot = matmul(%s, %w) -> %d: f32[4,8]
          | region="loop" trips=3
        loop.out0 = carry(%d) -> %y: f32[4,8]
          | trips=3
        return %y
    """)
    assert found["s", "bfloat16", "loop", 0, False, 3].cost == 3 * 32 * 6
    assert found["d", "float32", "", 0, False, 3].cost == 3 * 32 * 6


def test_what_is_written_in_place_is_cast_anew() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        add = add(%x, %x) -> %a: f32[4,8]
        one = linear(%a, %w) -> %h: f32[4,8]
        relu = relu(%a) -> %r: f32[4,8] alias %a
          | mutates=[0]
        two = linear(%a, %w) -> %k: f32[4,8]
        return %k
    """
    versions = {key[3] for key in groups_of(text) if key[0] == "a"}
    assert versions == {0, 1}


def test_a_kernel_that_promotes_is_a_mix_unless_a_weight_is_always_full() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        %b: f32[8] parameter
        one = linear(%x, %w) -> %h: f32[4,8]
        two = linear(%h, %w) -> %k: f32[4,8]
        add = add(%h, %OTHER) -> %a: f32[4,8]
          | operand_rule="promote"
        return %a
    """
    assert len(problem_of(text.replace("OTHER", "k")).groups.mixes) == 1
    assert problem_of(text.replace("OTHER", "b")).groups.mixes == []
    assert problem_of(text.replace("OTHER", "x")).groups.mixes == []


def test_a_dtype_argument_and_a_scalar_beside_a_tensor_cost_nothing() -> None:
    text = """
        %x: f32[4,8] input
        %s: f32[] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %h: f32[4,8]
        mul = mul(%h, %s) -> %m: f32[4,8]
          | operand_rule="promote"
        softmax = softmax(%m) -> %y: f32[4,8]
          | has_dtype_argument=true
        return %y
    """
    keys = {key[0] for key in groups_of(text)}
    assert keys == {"x", "w", "h"}  # neither %s nor %m

"""Which comparisons of floats decide if a loop goes on."""

from textwrap import dedent

from amprewrite.ir import parse_graph
from amprewrite.passes.analysis.demand import find_loop_tests


def deciding(text: str) -> frozenset[str]:
    return find_loop_tests(parse_graph(dedent(text).strip()))


def test_the_test_compares_by_itself() -> None:
    assert deciding("""
        %x: f32[] input
        %n: i32[] input
        small = gt(%x) -> %a: bool[]
          | literals=[0.5]
        count = lt(%n) -> %b: bool[]
        both = bitwise_and(%a, %b) -> %t: bool[]
          | decides=true
        other = gt(%x, %x) -> %y: bool[]
        return %x
    """) == {"small"}


def test_a_loop_without_a_test_has_none() -> None:
    text = "%x: f32[] input\na = gt(%x, %x) -> %y: bool[]\nreturn %x"
    assert deciding(text) == frozenset()


FLAG = """
    %f: bool[] input
    %i: i32[] input
    %x: f32[] input
    in = carry(%f) -> %a: bool[]
    test = logical_not(%a) -> %t: bool[]
      | decides=true
    in_1 = carry(%f) -> %b: bool[]
    {made}
    out = carry(%c) -> %r: {kind}[]
      | turns=["a", "b"]
    return %r
"""


def flag(made: str, kind: str = "bool") -> frozenset[str]:
    return deciding(FLAG.format(made=made, kind=kind))


def test_a_flag_that_the_body_makes_is_followed_round_the_carry() -> None:
    assert flag("small = lt(%x, %x) -> %c: bool[]") == {"small"}


def test_an_integer_that_was_chosen_by_a_comparison_is_followed() -> None:
    assert flag(
        """small = lt(%x, %x) -> %s: bool[]
    pick = where(%s, %i, %i) -> %c: i32[]""",
        "i32",
    ) == {"small"}


def test_a_count_and_the_place_of_the_greatest_ask_nothing() -> None:
    assert not flag("""small = lt(%x, %x) -> %s: bool[]
    int = cast(%s) -> %n: i32[]
    count = add(%i, %n) -> %m: i32[]
    done = ge(%m, %i) -> %c: bool[]""")
    assert not flag("""best = argmax(%x) -> %n: i32[]
    done = eq(%n, %i) -> %c: bool[]""")


def test_a_check_for_infinities_asks_nothing() -> None:
    assert not flag("finite = isfinite(%x) -> %c: bool[]")


def test_a_truth_value_that_is_returned_may_end_a_loop_outside() -> None:
    text = """
        %x: f32[4] input
        small = lt(%x, %x) -> %s: bool[4]
        done = all(%s) -> %d: bool[]
        return {}
    """
    assert deciding(text.format("%d")) == {"small"}
    assert deciding(text.format("%s")) == frozenset()
    assert deciding(text.format("%x")) == frozenset()


def test_a_number_that_is_returned_ends_nothing() -> None:
    assert not deciding("""
        %x: f32[] input
        more = gt(%x, %x) -> %m: bool[]
        pick = where(%m, %x, %x) -> %y: f32[]
        return %y
    """)

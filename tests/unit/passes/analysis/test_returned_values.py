"""Values that are returned and read too, where gradients are recorded."""

from amprewrite.passes.analysis.values import NOTHING_RETURNED, find_returned
from tests.placement_problem import graph_of

PROGRAM = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    one = linear(%x, %w) -> %h: f32[4,8]
    view = view(%h) -> %v: f32[32] alias %h
    turn = view(%v) -> %t: f32[8,4] alias %h
    two = linear(%t, %w) -> %b: f32[4,8]
    {line}
"""


def returned(line: str, outputs: tuple[str, ...], weights: tuple[str, ...] = ()):
    return find_returned(
        graph_of(PROGRAM.format(line=line)), outputs, "float32", weights
    )


def test_without_gradients_there_are_none() -> None:
    assert returned("return %h, %b", ("float32", "float32")) == NOTHING_RETURNED


def test_a_value_that_is_only_returned_is_none() -> None:
    found = returned("taped return %h, %b", ("float32", "float32"))
    assert (found.values, found.views, found.storages) == ({"h"}, set(), set())


def test_views_of_a_returned_value_are_full() -> None:
    found = returned("taped return %h, %t", ("float32", "float32"))
    assert (found.values, found.views) == ({"h", "t"}, {"view", "turn"})


def test_outputs_in_low_precision_are_their_own() -> None:
    assert not returned("taped return %h", ("bfloat16",)).values


def test_inputs_and_what_is_moved_from_weights_are_left_alone() -> None:
    assert not returned("taped return %x", ("float32",)).values
    assert not returned("taped return %h", ("float32",), ("h",)).values


def test_a_storage_that_is_written_is_full() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %h: f32[4,8]
        write = relu(%h) -> %r: f32[4,8] alias %h
          | mutates=[0]
        two = linear(%r, %w) -> %b: f32[4,8]
        taped return %r, %b
    """
    found = find_returned(graph_of(text), ("float32", "float32"), "float32")
    assert (found.values, found.storages) == (set(), {"h"})

"""Storages that ops write in place: those that can be kept full, and their ops."""

from textwrap import dedent

import pytest

pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.comparison.ablation import Storages
from amprewrite.ir import parse_graph

PROGRAM = """
    %x: f32[4] input
    a = relu(%x) -> %a: f32[4]
    b = exp(%x) -> %b: f32[4]
    v = view(%b) -> %v: f32[4] alias %b
    add = add(%v, %a) -> %c: f32[4] alias %b
      | mutates=[0]
    d = exp(%b) -> %d: f32[4]
    e = exp(%d) -> %e: f32[4]
    return %a, %e
"""


def storages(text=PROGRAM):
    return Storages(parse_graph(dedent(text).strip()))


def test_all_ops_of_a_storage_keep_it_full_and_its_readers_do_not():
    found = storages()
    assert found.restorable == {"a", "b", "v", "add", "d", "e"}
    assert set(found.of_op) == {"b", "v", "add"}
    assert found.makers == {"b"}
    assert {"b", "v", "c"} <= found.values
    assert found.values.isdisjoint({"a", "d"})
    assert found.full(["a", "d"]) == set()
    assert found.full(["a", "add"]) == {"b"}


def test_a_storage_of_an_input_is_shared_with_the_converted_program():
    text = PROGRAM.replace("add(%v, %a)", "add(%x, %a)").replace(
        "%c: f32[4] alias %b", "%c: f32[4] alias %x"
    )
    assert storages(text).restorable == {"v", "d", "e"}


def test_a_storage_that_passes_into_a_body_is_not_kept_full():
    text = PROGRAM.replace("d: f32[4]", 'd: f32[4]\n      | region="r"')
    assert storages(text).restorable == {"a", "e"}

"""The text of a JAX program parses."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.frameworks.jaxpr.function.pure_function import graph_text
from amprewrite.ir.text import parse_graph

ARGS = (jnp.ones((2, 4)), jnp.ones((4, 3)))


def product(x, w):
    return jax.nn.relu(x @ w)


def test_the_text_is_short_and_parses():
    text = graph_text(product, ARGS, {})
    assert text.splitlines()[:3] == [
        "%x: f32[2,4] input",
        "%w: f32[4,3] input",
        "dot_general = matmul(%x, %w) -> %dot_general: f32[2,3]",
    ]
    assert parse_graph(text).ops[0].canonical == "matmul"


def test_the_text_of_a_converted_function_has_its_casts():
    converted = amprewrite.convert(product, args=ARGS)
    assert "cast(%x) -> %convert_element_type: bf16[2,4]" in graph_text(
        converted, ARGS, {}
    )

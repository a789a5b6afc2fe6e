"""Names of functions and modules that stand for several ops."""

import pytest

from amprewrite.ops.compounds import (
    NAMES,
    class_compound,
    function_compound,
    kernel_compound,
)


@pytest.mark.parametrize(
    ("name", "compound"),
    [
        ("softmax", "softmax"),
        ("_softmax", "softmax"),
        ("make.<locals>.log_softmax", "log_softmax"),
        ("softmax_cross_entropy_with_integer_labels", "cross_entropy"),
        ("dot_product_attention", "attention"),
        ("LayerNorm.__call__", "layer_norm"),
        ("LayerNorm.setup", ""),
        ("softmax_block", ""),
        ("make.<locals>.<lambda>", ""),
        ("attention", ""),
        ("", ""),
    ],
)
def test_a_function_is_a_compound_by_its_whole_name(name: str, compound: str) -> None:
    assert function_compound(name) == compound


@pytest.mark.parametrize(
    ("name", "compound"),
    [
        ("LlamaRMSNorm", "rms_norm"),
        ("BertLayerNorm", "layer_norm"),
        ("NewGELUActivation", "gelu"),
        ("LogSoftmax", "log_softmax"),
        ("LlamaRotaryEmbedding", "rotary"),
        ("DotProductAttention", ""),
        ("LlamaMLP", ""),
        ("", ""),
    ],
)
def test_a_class_is_a_compound_by_the_end_of_its_name(name: str, compound: str) -> None:
    assert class_compound(name) == compound


def test_a_kernel_is_a_compound_by_its_canonical_name() -> None:
    assert kernel_compound("layer_norm") == "layer_norm"
    assert kernel_compound("scaled_dot_product_attention") == "attention"
    assert kernel_compound("add") == ""
    assert {"softmax", "attention", "convolution"} <= NAMES

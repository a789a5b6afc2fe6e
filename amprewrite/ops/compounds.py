"""Compounds: functions and modules that stand for several ops, by their names.

A program is read op by op: a ``softmax`` in the source becomes ``exp``,
``reduce_sum`` and others. The readers note the calls around an op whose names are in
these tables.
"""

import re
from collections.abc import Mapping
from functools import cache

from amprewrite.ops.table import OpTraits, traits_of

ATTENTION = "attention"
"""The compound that holds contractions; all others hold none."""

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    # softmax and losses
    "softmax": ("softmax", "masked_softmax"),
    "log_softmax": ("log_softmax",),
    "logsumexp": ("logsumexp", "log_sum_exp"),
    "cross_entropy": (
        *("cross_entropy", "cross_entropy_loss", "softmax_cross_entropy"),
        "softmax_cross_entropy_with_integer_labels",
    ),
    "binary_cross_entropy": (
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
        *("sigmoid_binary_cross_entropy", "bce_loss", "bce_with_logits_loss"),
    ),
    "mse_loss": ("mse_loss", "squared_error", "l2_loss"),
    "huber_loss": ("huber_loss", "smooth_l1_loss"),
    # norms
    "layer_norm": ("layer_norm", "layer_normalization"),
    "rms_norm": ("rms_norm", "rms_normalization"),
    "group_norm": ("group_norm", "group_normalization"),
    "instance_norm": ("instance_norm", "instance_normalization"),
    "batch_norm": ("batch_norm", "batch_normalization", "batch_norm2d"),
    "standardize": ("standardize",),
    # activations
    "gelu": ("gelu", "gelu_activation", "quick_gelu", "quick_gelu_activation"),
    "silu": ("silu", "swish", "silu_activation"),
    "swiglu": ("swiglu",),
    "glu": ("glu",),
    "mish": ("mish", "mish_activation"),
    "elu": ("elu",),
    "selu": ("selu",),
    "celu": ("celu",),
    "relu": ("relu",),
    "relu6": ("relu6",),
    "leaky_relu": ("leaky_relu",),
    "softplus": ("softplus",),
    "log_sigmoid": ("log_sigmoid",),
    "hard_sigmoid": ("hard_sigmoid",),
    "hard_swish": ("hard_swish", "hard_silu"),
    # others
    "rotary": (
        *("apply_rotary_pos_emb", "apply_rotary_embedding", "apply_rotary"),
        *("rotary_embedding", "rotary_positional_embedding"),
    ),
    ATTENTION: (
        *("dot_product_attention", "dot_product_attention_weights"),
        "scaled_dot_product_attention",
    ),
    "searchsorted": ("searchsorted",),
}
"""Each compound with the functions and classes that are known to be it.

They are the public functions of ``jax.nn``, ``optax.losses`` and
``torch.nn.functional``, with their names in flax, equinox and transformers.
"""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_COMPOUNDS = {
    _plain(name): compound for compound, names in _SPELLINGS.items() for name in names
}

_OF_KERNELS = {
    "conv": "convolution",
    "scaled_dot_product_attention": ATTENTION,
    "max_pool": "max_pool",
}
"""Compounds of kernels that are called otherwise."""

NAMES = frozenset((*_SPELLINGS, *_OF_KERNELS.values()))
"""The names of all compounds."""


def kernel_compound(canonical: str) -> str:
    """Return the compound that one op is by itself; empty if it is none."""
    found = _OF_KERNELS.get(canonical, canonical)
    return found if found in NAMES else ""


_AS_OPS = {
    ATTENTION: "scaled_dot_product_attention",
    "hard_sigmoid": "hardsigmoid",
    "hard_swish": "hardswish",
    "standardize": "layer_norm",
    "swiglu": "glu",
}
"""Ops that have the traits of compounds of another name."""


@cache
def call_traits(call: str) -> OpTraits:
    """Return the traits of the op that a call stands for.

    Args:
        call: A compound with the number of its call: ``softmax#3``.
    """
    compound = call.partition("#")[0]
    return traits_of(_AS_OPS.get(compound, compound))


@cache
def function_compound(name: str) -> str:
    """Return the compound that a function is, by its qualified name.

    Args:
        name: Such as ``softmax``, ``make.<locals>._softmax`` or ``RMSNorm.__call__``;
            a method that runs a module counts as the module's class.

    Returns:
        The name of the compound; empty if it is none.
    """
    *outer, last = name.split(".")
    if outer and outer[-1] != "<locals>":
        runs = last in ("__call__", "forward")
        return class_compound(outer[-1]) if runs else ""
    return _COMPOUNDS.get(_plain(last), "")


@cache
def class_compound(name: str) -> str:
    """Return the compound that a class of modules is: ``rms_norm`` of ``LlamaRMSNorm``.

    Its name may begin with that of a model; that of attention is none, since such
    modules hold more than attention.
    """
    plain = _plain(re.sub(r"\W", "", name))
    ends = [spelled for spelled in _COMPOUNDS if plain.endswith(spelled)]
    found = _COMPOUNDS[max(ends, key=len)] if ends else ""
    return "" if found == ATTENTION else found

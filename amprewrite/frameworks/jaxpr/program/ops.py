"""The primitives of JAX: their names in policies, and what is never touched.

The table of ops says which primitives are an op under a different name. All want
operands of equal dtypes; ``dot_general`` takes different ones too, and then computes in
float32 without a word.
"""

from functools import cache
from typing import Any

from jax.dtypes import float0

from amprewrite.ops import op_table

CONTRACTIONS = frozenset(("dot_general", "conv_general_dilated"))
"""Contractions that can hand back their full-precision accumulators."""

TYPED_BODIES = {
    "scatter": "scatter",
    "scatter-add": "scatter_add",
}
"""Primitives with a body typed for one dtype, and the function of ``jax.lax`` that
makes a new body for another dtype."""

SUMMED_BACKWARDS = frozenset(("broadcast_in_dim", "gather", "pcast", "pvary"))
"""Moves of data whose derivative is a sum, which is made in full precision."""

_CALLBACK = "calls back into Python, which expects the dtypes it was traced with"
_KERNEL = "a kernel written for the dtypes it was traced with"
_SOLVER = "a solver: factorisations have no low kernels"
_SYSTEM = "a linear solver: its tolerance is for the dtype it was traced with"
_RULE = "a rule of the user, written for the dtypes it was traced with"
_STATE = "reads or writes a mutable array, which has one dtype"

FENCES = {
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback"), _CALLBACK),
    **dict.fromkeys(
        ("debug_print", "ffi_call", "custom_call", "tpu_custom_call"), _CALLBACK
    ),
    **dict.fromkeys(("pallas_call", "mosaic_gpu", "triton_kernel_call"), _KERNEL),
    **dict.fromkeys(("custom_linear_solve", "custom_root"), _SOLVER),
    "linear_solve": _SYSTEM,  # of lineax, and all solvers made with it
    **dict.fromkeys(("custom_partitioning", "custom_vmap_call"), _RULE),
    **dict.fromkeys(("linear_call", "call_hi_primitive"), _RULE),
    "low_contraction": "a contraction that was converted before",
    "low_tangent": "the tangent of a contraction that was converted before",
    **dict.fromkeys(
        ("run_state", "get", "swap", "addupdate", "ref_new", "new_ref"), _STATE
    ),
    **dict.fromkeys(("freeze", "mutable_array", "empty_ref", "free_ref"), _STATE),
    **dict.fromkeys(("reduce", "reduce_window"), "reduces by a function of the user"),
    "reduce_precision": "rounds to a format that the model chose",
}
"""Primitives that are never touched, and why."""

DTYPE_PARAMETERS = ("preferred_element_type", "out_dtype")
"""Parameters that name the dtype of the result."""


def canonical_name(primitive: str) -> str:
    """Return the name of a primitive in policies."""
    return op_table().jax.get(primitive, primitive.replace("-", "_"))


def dtype_name(aval: Any) -> str:
    """Return the name of the dtype of ``aval``: of a reference, a token, too."""
    dtype = getattr(aval, "dtype", None)
    return type(aval).__name__ if dtype is None else _name(dtype)


@cache
def _name(dtype: Any) -> str:
    """Numpy computes the name of a dtype anew each time."""
    if dtype == float0:
        return "float0"  # numpy calls it void
    return getattr(dtype, "name", str(dtype))

"""The primitives of JAX: canonical names, dtype names, and fences.

The table of ops has the primitives that are an op under a different name. All need
operands of equal dtypes; ``dot_general`` accepts different ones too, and then silently
computes in float32.
"""

from functools import cache
from typing import Any

from jax.dtypes import float0

from amprewrite.ops import op_table

CONTRACTIONS = frozenset(("dot_general", "conv_general_dilated"))
"""Contractions that can return their full-precision accumulators."""

SCALE = "amprewrite_scale"
"""The primitive of unit scaling, with parameters ``forward`` and ``backward``."""

TYPED_BODIES = {
    "scatter": "scatter",
    "scatter-add": "scatter_add",
}
"""Primitives with a body typed for one dtype, and a function for other dtypes.

The function of ``jax.lax`` makes a new body for another dtype.
"""

SUMMED_BACKWARDS = frozenset(("broadcast_in_dim", "gather", "pcast", "pvary"))
"""Moves of data with a sum as derivative, which runs in full precision."""

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
"""Primitives that are never changed, with the reason."""

DTYPE_PARAMETERS = ("preferred_element_type", "out_dtype")
"""Names of the parameters that set the dtype of the result."""


def canonical_name(primitive: str) -> str:
    """Return the canonical name of a primitive."""
    found = op_table().jax.get(primitive)
    return primitive.replace("-", "_") if found is None else found


def dtype_name(aval: Any) -> str:
    """Return the dtype name of ``aval``; for one without a dtype, its type's name."""
    dtype = getattr(aval, "dtype", None)
    return type(aval).__name__ if dtype is None else _name(dtype)


@cache
def _name(dtype: Any) -> str:
    """Return the cached name of a dtype, since NumPy recomputes it each time."""
    if dtype == float0:
        return "float0"  # numpy calls it void
    return getattr(dtype, "name", str(dtype))

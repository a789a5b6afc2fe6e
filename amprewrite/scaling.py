"""The public function of unit scaling; its imports run when it is called."""

from collections.abc import Mapping
from typing import Any


def unit_scale(  # noqa: PLR0913  # the public signature; all but three are by keyword
    model_or_fn: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    *,
    constraint: str | None = "auto",
    tau: float = 0.5,
    mult: Mapping[str, float] | None = None,
    init: bool = True,
) -> Any:
    """Return a copy of a model with unit scaling: factors at every op.

    Activations, weights and gradients then have a standard deviation near 1 at the
    first step. Another function is computed than by the model, so that ``verify``
    compares the scaled model with its converted form, never with the plain one.

    Args:
        model_or_fn: A ``torch.nn.Module``, ``torch.fx.GraphModule`` or
            ``torch.export.ExportedProgram``; or a function of JAX, the first argument
            of which holds the parameters (any tree of arrays); or a module of Equinox
            or Flax (linen, nnx). It is not changed.
        args: Positional arguments of a call, by which the model is captured; of a linen
            module those of ``apply``: variables first. In torch the first extent of
            each tensor may vary afterwards; other calls are captured anew. In JAX each
            signature is traced once, and has factors of its own extents.
        kwargs: Keyword arguments of that call.
        constraint: Chooses one factor for the output of an op and for the gradients of
            its inputs that are no cut edges: ``auto`` takes that of the output; or a
            name of :data:`amprewrite.unit_scaling.CONSTRAINTS`. None joins no factors,
            which makes gradients of models with several paths wrong.
        tau: Weight of residual branches; that of the skip is 1.
        mult: Multipliers m by name of an elementwise function, such as
            ``{"gelu": 2.0}``: f(mx)/m is computed.
        init: Whether matrices are divided by their standard deviation, and biases set
            to zero. Of a linen module that is done to the result of its ``init``. The
            parameters of a function are arguments:
            ``amprewrite.unit_scaling.jax.unit_init`` is for them; with other weights
            the factors are the same, and outputs are as far from scale 1 as weights.

    Returns:
        A module of a class derived from the model's own, with parameters of the same
        names; for a function a function. ``.scales`` is the scale plan of the program
        that ran last.

    Raises:
        CaptureError: The model cannot be captured as one graph, or traced.
        UnitScalingError: An op has no rule; the constraint, ``tau`` or a name in
            ``mult`` is wrong.
        UnsupportedError: The model is of another kind, is converted or scaled already,
            has complex numbers, computes with symbols of ``jax.export``, or has a body
            of JAX without a rule (``shard_map``).
    """
    from amprewrite.unit_scaling.unit_scale import (  # noqa: PLC0415  # when called
        unit_scale as scale,
    )

    return scale(
        model_or_fn,
        args,
        kwargs,
        constraint=constraint,
        tau=tau,
        mult=mult,
        init=init,
    )

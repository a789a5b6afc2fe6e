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
    """Return a copy of a model of torch with unit scaling: factors at every op.

    Activations, weights and gradients then have a standard deviation near 1 at the
    first step. Another function is computed than by the model, so that ``verify``
    compares the scaled model with its converted form, never with the plain one.

    Args:
        model_or_fn: A ``torch.nn.Module``, ``torch.fx.GraphModule`` or
            ``torch.export.ExportedProgram``. It is not changed.
        args: Positional arguments of a call, by which the model is captured. The first
            extent of each tensor may vary afterwards; other calls are captured anew.
        kwargs: Keyword arguments of that call.
        constraint: Chooses one factor for the output of an op and for the gradients of
            its inputs that are no cut edges: ``auto`` takes that of the output; or a
            name of :data:`amprewrite.unit_scaling.CONSTRAINTS`. None joins no factors,
            which makes gradients of models with several paths wrong.
        tau: Weight of residual branches; that of the skip is 1.
        mult: Multipliers m by canonical name of an elementwise op, such as
            ``{"gelu": 2.0}``: f(mx)/m is computed.
        init: Whether matrices are divided by their standard deviation, and biases set
            to zero.

    Returns:
        A module of a class derived from the model's own, with parameters of the same
        names; ``.scales`` is the scale plan of the program that ran last.

    Raises:
        CaptureError: The model cannot be captured as one graph.
        UnitScalingError: An op has no rule; the constraint, ``tau`` or a name in
            ``mult`` is wrong.
        UnsupportedError: The model is of another kind, is converted or scaled already,
            or has complex numbers.
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

"""Check that gradients pass through the ops of a graph."""

from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.probes.arrays import floats
from amprewrite.ir import Op, ProgramGraph


def check_differentiable(op: Op, operands: Any, value: Any) -> None:
    """Check that gradients pass through an op that is no part of torch.

    Raises:
        UnsupportedError: They do not pass.
    """
    made = floats(value)
    if any("NotImplemented" in type(t.grad_fn).__name__ for t in made):
        raise no_gradient(op, None)
    if op.native.startswith("aten.") or not any(
        t.requires_grad for t in floats(operands)
    ):
        return
    if made and not any(t.requires_grad for t in made):
        raise no_gradient(op, None)


def place_of(op: Op) -> str:
    """Return the name of an op, and its place in the source."""
    where = op.source or op.path
    return f"{op.native} (%{op.name})" + (f" at {where}" if where else "")


def no_gradient(op: Op, error: Exception | None) -> UnsupportedError:
    """Return the error that an op cannot be differentiated."""
    line = str(error).strip().partition("\n")[0] if error else "it has no gradient"
    msg = (
        f"tolerance needs gradients, and {place_of(op)} cannot be differentiated: "
        f"{line}; register its gradient, or leave tolerance=None"
    )
    return UnsupportedError(msg)


def blamed(graph: ProgramGraph, error: Exception) -> UnsupportedError:
    """Return the error about a backward pass, with the op that it names."""
    text = str(error)
    for op in graph.ops:
        if op.native in text or op.native.rpartition(".")[0] + " " in text:
            return no_gradient(op, error)
    line = text.strip().partition("\n")[0]
    msg = f"tolerance needs gradients, and an op of the model has none: {line}"
    return UnsupportedError(msg)

"""Exponents of the numbers of one run of a model, in either framework."""

from collections.abc import Mapping

from amprewrite.measure.exponents import ExponentHistogram


def histogram(
    model: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    *,
    gradients: bool = True,
) -> ExponentHistogram:
    """Run a model once, and return the exponents of its numbers.

    They show the share of weights, activations and gradients that a format loses, and
    the loss scale that would save them. In torch each result of a function is a tensor,
    views left out; in JAX each float array of an equation, where functions of JAX under
    ``jit``, branches and ``while`` loops are one equation and the arrays of a ``scan``
    are stacked. Complex numbers are left out.

    Where some outputs are scalars they are losses: they get the gradient 1, and other
    outputs 0. Otherwise every float output gets unit Gaussian numbers, which say little
    about the gradients of a training: pass a model that returns its loss. Parameters,
    buffers, gradients and the state of random numbers stay as they are.

    Args:
        model: A ``torch.nn.Module``, ``torch.fx.GraphModule`` or
            ``torch.export.ExportedProgram``, plain or converted; with JAX a function
            whose first argument holds the parameters (any tree of arrays), or a module
            of Equinox or Flax.
        args: Positional arguments of the call; of a linen module its variables first.
        kwargs: Keyword arguments of the call.
        gradients: Whether to run backward too.

    Returns:
        The exponents of each tensor, with totals, shares by format, a loss scale, a
        plot and JSON. It costs a forward and a backward pass; each tensor is copied to
        the host in float64, in torch one after the other, in JAX all at once.

    Raises:
        ArgumentError: ``args`` is no tuple, or ``kwargs`` no mapping; or gradients are
            wanted, and there is no float output or no parameter.
        UnsupportedError: The model is of no supported kind.
    """
    from amprewrite.frameworks.arguments import check_arguments
    from amprewrite.measure.exponents.counting import count_exponents
    from amprewrite.registry import framework_of

    check_arguments(args, kwargs)
    framework, named = framework_of(model), dict(kwargs or {})
    return count_exponents(
        lambda look: framework.observe(model, args, named, look, gradients=gradients)
    )

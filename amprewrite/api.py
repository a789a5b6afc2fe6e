"""The public functions: each picks the framework of its model and hands over."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amprewrite.dispatch import Asked, module_beside
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Call
from amprewrite.passes.pareto import FEWEST, Front, Point
from amprewrite.passes.tolerance import Tolerance
from amprewrite.plan import Plan
from amprewrite.plan.calibration import Calibration, save_calibration
from amprewrite.policy import Policy, Rule, load_policy
from amprewrite.verify import Report
from amprewrite.verify import verify as compare

TARGETS = ("eager", "compiled")
"""Who runs the result: each op on its own, or a fusing compiler."""


def convert(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: Any,
    policy: str | Path | Policy = "bf16",
    *,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    placement: str = "promote",
    tolerance: Tolerance | None = None,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    plan: Plan | None = None,
    dynamic_shapes: Any = None,
    training: bool | None = None,
    target: str = "eager",
    compile: bool = False,  # noqa: A002  # the public name
) -> Any:
    """Return ``model`` with every op in the precision that ``policy`` gives it.

    Args:
        model: A ``torch.nn.Module``, ``torch.fx.GraphModule`` or
            ``torch.export.ExportedProgram``; with JAX a function, an
            ``equinox.Module``, ``flax.linen.Module`` or ``flax.nnx.Module``. It is not
            changed.
        policy: Name of a shipped policy, path of a TOML file, jmp string or Policy.
        args: Positional arguments to capture the model with; without ``args`` and
            ``kwargs`` it is captured at its first call. With JAX arrays may be given
            as shapes (``jax.ShapeDtypeStruct``).
        kwargs: Keyword arguments to capture the model with.
        placement: ``promote``: forward promotion under demand. ``optimal``: the
            cheapest placement that the policy allows, by a minimum cut, with a
            certificate in ``plan.cost.lower_bound``. ``paint``: TensorFlow's way, to
            compare with.
        tolerance: For placement ``optimal``: the largest relative L2 error, against
            full precision on ``args``. A number for all float outputs together, a
            table of numbers by output path (``{"logits": 1e-3}``), or ``"autocast"``
            for the error of torch.autocast, of placement ``promote`` with JAX.
            ``plan.predicted_error`` has the first-order error of the plan. None
            bounds nothing.
        overrides: Rules tried before the policy's own; a table such as
            ``{"path": "decoder.*", "class": "deny"}`` is one.
        plan: A plan to apply instead of making one.
        dynamic_shapes: Extents that vary, as ``torch.export.export`` takes them.
        training: Whether the parameters will be trained: then they stay the original
            objects, and weights are cast as they are used. None takes the mode of the
            model (``model.training``).
        target: ``eager``, or ``compiled`` for a fusing compiler: what casts and ops
            cost, and so what placement ``optimal`` chooses. Where ``amprewrite
            calibrate`` has measured the device of the model, those prices count.
        compile: Compile the result with inductor.

    Returns:
        A program of the same kind, with ``.plan`` and ``.casts``: an ``nn.Module`` with
        the same call signature, output structure, output dtypes and ``state_dict``
        keys; a function that composes with the transformations of JAX; a JAX module
        with the same parameters and state.

    Raises:
        PolicyError: The policy or an override has mistakes.
        CaptureError: The model cannot be captured; the message has the first line.
        PlanMismatchError: ``plan`` belongs to another program.
        ToleranceError: ``tolerance`` is no bound, or no plan keeps it.
        UnsupportedError: The model, placement or target is not supported.
    """
    if target not in TARGETS:
        msg = f"unknown target {target!r}; want {' or '.join(TARGETS)}"
        raise UnsupportedError(msg)
    if tolerance is not None and plan is not None:
        msg = "plan= is applied as it is, so that it takes no tolerance; pass one"
        raise UnsupportedError(msg)
    if overrides and plan is not None:
        msg = (
            "plan= is applied as it is, so that it takes no overrides; give them to "
            "inspect(), which makes a plan, and pass that"
        )
        raise UnsupportedError(msg)
    loaded = load_policy(policy)
    asked = Asked(model, loaded, args, kwargs, overrides, target, placement, tolerance)
    request = asked.request(
        asked.budget(),
        plan=plan,
        dynamic_shapes=dynamic_shapes,
        training=training,
        target=target,
        compile=compile,
    )
    return asked.side.convert(model, request)


def inspect(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: Any,
    policy: str | Path | Policy = "bf16",
    *,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    placement: str = "promote",
    tolerance: Tolerance | None = None,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    dynamic_shapes: Any = None,
    training: bool | None = None,
    target: str = "eager",
) -> Plan:
    """Return the plan that :func:`convert` would apply, without converting.

    A converted module gives the plan that it runs by. The arguments are those of
    :func:`convert`.

    Raises:
        PolicyError: The policy or an override has mistakes.
        CaptureError: The model cannot be captured.
        ToleranceError: ``tolerance`` is no bound, or no plan keeps it.
        UnsupportedError: No arguments are given to capture the model with, or there
            is no such placement or target.
    """
    loaded = load_policy(policy)
    asked = Asked(model, loaded, args, kwargs, overrides, target, placement, tolerance)
    request = asked.request(
        asked.budget(), dynamic_shapes=dynamic_shapes, training=training
    )
    return asked.side.inspect(model, request)


def pareto(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: Any,
    policy: str | Path | Policy = "bf16",
    *,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    points: int = 8,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    dynamic_shapes: Any = None,
    training: bool | None = None,
    target: str = "eager",
) -> tuple[Point, ...]:
    """Return the cheapest plans for errors from that of the cheapest plan to none.

    Args:
        model: As :func:`convert` takes it, not converted.
        policy: As :func:`convert` takes it; it has a low dtype.
        args: Positional call arguments, on which errors are measured.
        kwargs: Keyword call arguments.
        points: How many errors are aimed at; equal plans and plans that another beats
            in both error and bytes are left out.
        overrides: As in :func:`convert`.
        dynamic_shapes: As in :func:`convert`.
        training: As in :func:`convert`.
        target: As in :func:`convert`.

    Returns:
        Plans of placement ``optimal`` by rising bytes and falling error, then that of
        ``promote``; each with its predicted and its measured error.

    Raises:
        PolicyError: The policy or an override has mistakes.
        CaptureError: The model cannot be captured.
        ToleranceError: The model is not finite as it is.
        UnsupportedError: There is nothing to choose between, or no arguments.
    """
    loaded = load_policy(policy)
    asked = Asked(model, loaded, args, kwargs, overrides, target, tolerance=1.0)
    budget = asked.budget()
    if budget is None or points < FEWEST:
        found = f"points={points}" if budget else f"policy {loaded.name!r} has no low"
        msg = f"{found}: want at least {FEWEST} points, and a policy with a low dtype"
        raise UnsupportedError(msg)
    front = Front(budget, points)
    request = asked.request(front, dynamic_shapes=dynamic_shapes, training=training)
    asked.side.inspect(model, request)
    if not front.points:
        msg = "the model is converted already; give the original, to plan it anew"
        raise UnsupportedError(msg)
    return tuple(front.points)


def graph_text(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return ``model``, as it is or converted, as the text of a program graph.

    Raises:
        CaptureError: The model cannot be captured.
        UnsupportedError: The model is of no supported kind.
    """
    return module_beside(model, "export").graph_text(model, args, kwargs)


def save_program(
    converted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: Path
) -> None:
    """Write a converted model to ``path``, for the framework to load.

    Raises:
        CaptureError: The model cannot be exported.
        UnsupportedError: The framework has no file for it.
    """
    module_beside(converted, "export").save_program(converted, args, kwargs, path)


def calibrate() -> dict[str, Calibration]:
    """Time every framework that is installed, each on its default device.

    What was measured is kept, and prices what is planned for that device from then on.

    Returns:
        What was measured, by framework.

    Raises:
        UnsupportedError: No framework is installed, or a file cannot be written.
    """
    sides = {"torch": "torch_fx", "jax": "jaxpr"}
    installed = [name for name in sides if find_spec(name) is not None]
    if not installed:
        msg = (
            "calibrate times torch and JAX, and neither is installed; "
            "pip install 'amprewrite[torch]' or 'amprewrite[jax]'"
        )
        raise UnsupportedError(msg)
    found: dict[str, Calibration] = {}
    for name in installed:
        side: Any = import_module(f"amprewrite.frameworks.{sides[name]}.calibrate")
        found[name] = side.measure()
        save_calibration(found[name])
    return found


def verify(  # noqa: PLR0913  # the public signature; most are by keyword
    original: Any,
    converted: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    reference: str = "float64",
    gradients: bool = False,
    rtol: float | None = None,
) -> Report:
    """Return a report on how far ``converted`` is from ``original``.

    Args:
        original: The model that was converted.
        converted: What :func:`convert` gave, or any callable of the same signature.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        reference: Dtype in which ``original`` is run as the reference.
        gradients: Whether to compare the gradients of the parameters too.
        rtol: Bound on the relative L2 error of every output.

    Returns:
        A :class:`amprewrite.verify.Report`.

    Raises:
        VerifyError: ``rtol`` is given and an output is worse, or is not finite where
            the reference is; or the outputs differ in structure.
        UnsupportedError: The model is of no supported kind, or ``reference`` is
            neither float64 nor float32.
    """
    side = module_beside(original, "compare")
    call = Call(args, dict(kwargs or {}), reference, gradients)
    return compare(side, original, converted, call, rtol)

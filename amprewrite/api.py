"""The public functions: each finds the framework of its model and calls it.

The imports of a function run when it is called: importing the package is light.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.plan import Plan
from amprewrite.plan.bounds import Point, Tolerance, strategy_of
from amprewrite.plan.hardware import Calibration, save_calibration
from amprewrite.policy import PolicyLike, Rule, load_policy
from amprewrite.verify import Report

TARGETS = ("eager", "compiled")
"""Ways to run the result: op by op, or through a fusing compiler."""


def convert(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: object,
    policy: PolicyLike | None = None,
    *,
    args: tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    placement: str | None = None,
    tolerance: Tolerance | None = None,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    plan: Plan | None = None,
    dynamic_shapes: object = None,
    training: bool | None = None,
    target: str | None = None,
    compile: bool = False,  # noqa: A002  # the public name
    device: str | None = None,
    lowering: bool = True,
    recompute: bool = False,
) -> Any:
    """Return ``model`` with every op in the precision that ``policy`` gives it.

    Args:
        model: A ``torch.nn.Module``, ``torch.fx.GraphModule`` or
            ``torch.export.ExportedProgram``; with JAX a function, an
            ``equinox.Module``, ``flax.linen.Module`` or ``flax.nnx.Module``; unchanged.
        policy: Name of a shipped policy, a dtype to compute in (``"bfloat16"``,
            ``torch.bfloat16``, ``jnp.bfloat16``), path of a TOML file, jmp string or
            Policy; see :func:`load_policy`. None is ``"bf16"``, or with ``plan`` the
            policy that it was made by.
        args: Positional arguments to capture the model with; without ``args`` and
            ``kwargs`` it is captured at its first call. With JAX arrays may be given
            as shapes (``jax.ShapeDtypeStruct``).
        kwargs: Keyword arguments to capture the model with.
        placement: ``promote``: forward promotion under demand. ``optimal``: the
            cheapest placement that the policy allows, by an integer program, with a
            certificate in ``plan.cost.lower_bound``. ``fastest``: of plans within the
            tolerance, and full precision, the fastest on ``args``; see ``plan.timed``.
            ``paint``: the algorithm of TensorFlow, for comparison. None is ``optimal``
            with a tolerance, else ``promote``.
        tolerance: For placements ``optimal`` and ``fastest``: the largest relative L2
            error, against full precision on ``args``. A number for all float outputs
            together, a table of numbers by output path (``{"logits": 1e-3}``), or
            ``"autocast"``, the default of ``fastest``, for the error of torch.autocast,
            of placement ``promote`` with JAX. ``plan.predicted_error`` has the
            first-order error of the plan. With ``training=True`` and a policy with
            8-bit formats, a number or ``"autocast"`` bounds the gradients of the
            parameters, too; see ``plan.gradient_error``. None bounds nothing.
        overrides: Rules tried before the policy's own; a table such as
            ``{"path": "decoder.*", "class": "deny"}`` is one.
        plan: A plan to apply instead of making one; it needs ``args`` or ``kwargs``.
            Further programs of the model (another signature, the other mode) are
            planned by its policy and overrides, for its target.
        dynamic_shapes: Extents that vary, as ``torch.export.export`` takes them.
        training: Whether the parameters will be trained: then they stay the original
            objects, and weights are cast as they are used. None takes the mode of the
            model (``model.training``).
        target: ``eager``, or ``compiled`` for a fusing compiler: it sets the prices of
            casts and ops, and so the choices of placement ``optimal``. None is the
            framework's usual way, ``compiled`` for JAX and ``eager`` for torch, or that
            of ``plan``. Prices measured by ``amprewrite calibrate`` on the model's
            device are used.
        compile: Compile the result with inductor, for inference with frozen weights.
        device: The device to plan for, which may be absent: a kind (``cpu``, ``cuda``,
            for JAX also ``tpu``) or the name of a device that ``amprewrite calibrate``
            measured, with its prices. The program is for that device; nothing is moved
            there. None is the device of the model.
        lowering: Whether eager calls of a torch module run a lowered graph, which
            computes the same in fewer steps. False runs the graph of the plan.
        recompute: Whether training computes norms, softmaxes, activations and casts
            again in the backward pass, from the low results of contractions, instead
            of keeping their values; ``plan.recompute`` has both. No contraction and no
            random draw runs twice. Inference does not change; nor does torch.compile,
            which chooses by itself.

    Returns:
        A program of the same kind, with ``.plan`` and ``.casts``: an ``nn.Module`` with
        the same call signature, output structure, output dtypes and ``state_dict``
        keys; a function that composes with the transformations of JAX; a JAX module
        with the same parameters and state.

    Raises:
        ArgumentError: Call arguments or overrides are of the wrong kind.
        PolicyError: The policy or an override has mistakes.
        CaptureError: The model cannot be captured; the message has the first line.
        PlanMismatchError: ``plan`` belongs to another program, mode or policy, or
            does not agree with itself.
        ToleranceError: ``tolerance`` is no bound, or no plan keeps it.
        UnsupportedError: The model, placement, target or device is not supported.
    """
    from amprewrite.dispatch import Asked, recomputer, refuse_beside_plan

    if target not in (None, *TARGETS):
        msg = f"unknown target {target!r}; want {' or '.join(TARGETS)}"
        raise UnsupportedError(msg)
    if plan is None:
        loaded = load_policy("bf16" if policy is None else policy)
    else:
        from amprewrite.plan.validation.maker import policy_of

        refuse_beside_plan(plan, placement, tolerance, overrides)
        plan = Plan.from_json(plan.to_json())  # it may have been edited
        loaded = policy_of(plan, policy)
        placement, overrides = strategy_of(plan.placement), plan.overrides
        target = target or plan.target or None
    call = args, kwargs
    asked = Asked(model, loaded, *call, overrides, target, placement, tolerance, device)
    how = f"compile={compile}", f"lowering={lowering}", f"recompute={recompute}"
    request = replace(
        asked.request(asked.searched(*how)),
        plan=plan,
        dynamic_shapes=dynamic_shapes,
        training=training,
        target=asked.runs,
        compile=compile,
        lowering=lowering,
        recompute=recomputer(recompute=recompute),
    )
    return asked.framework.convert(model, request)


def original(converted: object) -> Any:
    """Return the plain model of a converted one, with the current weights.

    Args:
        converted: A result of :func:`convert`; with JAX also a tree of its kind, such
            as its gradients. An unconverted model is returned as it is.

    Returns:
        A model of the user's own class. For torch: converted for training, the model
        itself, or a copy that shares replaced parameters; converted for inference, a
        new model in the dtypes of the given one, with the weights of the converted
        (those stored low stay rounded); an ``ExportedProgram`` comes back as its
        module. For Equinox, a module with the same leaves; for ``flax.nnx``, with the
        same variables; for ``flax.linen``, a module, which holds no weights. For a
        function, the function that was converted.

    Raises:
        UnsupportedError: The model is of no supported kind, a part of a converted
            model or a wrapper around one, was loaded from a pickle, or cannot be
            copied.
    """
    from amprewrite.registry import framework_of

    return framework_of(converted).original(converted)


def inspect(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: object,
    policy: PolicyLike = "bf16",
    *,
    args: tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    placement: str | None = None,
    tolerance: Tolerance | None = None,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    dynamic_shapes: object = None,
    training: bool | None = None,
    target: str | None = None,
    device: str | None = None,
    recompute: bool = False,
) -> Plan:
    """Return the plan that :func:`convert` would apply, without converting.

    A converted module returns the plan that it runs by. The arguments are those of
    :func:`convert`.

    Raises:
        ArgumentError: Call arguments or overrides are of the wrong kind.
        PolicyError: The policy or an override has mistakes.
        CaptureError: The model cannot be captured.
        ToleranceError: ``tolerance`` is no bound, or no plan keeps it.
        UnsupportedError: No arguments are given to capture the model with, or there
            is no such placement or target.
    """
    from amprewrite.dispatch import Asked, recomputer

    loaded = load_policy(policy)
    call = args, kwargs
    asked = Asked(model, loaded, *call, overrides, target, placement, tolerance, device)
    how = "compile=False", "lowering=True", f"recompute={recompute}"
    request = replace(
        asked.request(asked.searched(*how)),
        dynamic_shapes=dynamic_shapes,
        training=training,
        recompute=recomputer(recompute=recompute),
    )
    return asked.framework.inspect(model, request)


def plan_of(model: object) -> Plan:
    """Return the plan by which a converted or compiled model runs.

    Args:
        model: A result of :func:`convert`, also under ``torch.compile``, ``jax.jit`` or
            ``jax.grad``; a result of ``torch.compile(..., backend="amprewrite")``, a
            module or a function; or a torch module that holds such modules.

    Returns:
        The plan. Plans of several graphs or signatures are joined, with numbered op
        names.

    Raises:
        NotCapturedError: It is captured at its first call, and was not called yet.
        UnsupportedError: It is neither converted nor compiled.
    """
    from amprewrite.registry import framework_of_result

    return framework_of_result(model).plan_of(model)


def pareto(  # noqa: PLR0913  # the public signature; all but two are by keyword
    model: object,
    policy: PolicyLike = "bf16",
    *,
    args: tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    points: int = 8,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    dynamic_shapes: object = None,
    training: bool | None = None,
    target: str | None = None,
) -> tuple[Point, ...]:
    """Return the Pareto front of a model: the cheapest plans for a range of errors.

    Args:
        model: As :func:`convert` takes it, not converted.
        policy: As :func:`convert` takes it; it has a low dtype.
        args: Positional call arguments, on which errors are measured.
        kwargs: Keyword call arguments.
        points: Number of errors to aim at; equal plans, and plans that another beats in
            both error and bytes, are left out.
        overrides: As in :func:`convert`.
        dynamic_shapes: As in :func:`convert`.
        training: As in :func:`convert`.
        target: As in :func:`convert`.

    Returns:
        Plans of placement ``optimal`` by rising bytes and falling error, then that of
        ``promote``; each with its predicted and its measured error.

    Raises:
        ArgumentError: Call arguments or overrides are of the wrong kind.
        PolicyError: The policy or an override has mistakes.
        CaptureError: The model cannot be captured.
        ToleranceError: The outputs of the model are not finite.
        UnsupportedError: The policy has no low dtype, there are fewer than 2 points,
            the model is converted, or no arguments are given.
    """
    from amprewrite.dispatch import Asked
    from amprewrite.passes.error_budget.budget import FEWEST, Front

    loaded = load_policy(policy)
    asked = Asked(model, loaded, args, kwargs, overrides, target, tolerance=1.0)
    budget = asked.budget()
    if budget is None or points < FEWEST:
        found = f"points={points}" if budget else f"policy {loaded.name!r} has no low"
        msg = f"{found}: want at least {FEWEST} points, and a policy with a low dtype"
        raise UnsupportedError(msg)
    front = Front(**vars(budget), count=points)
    request = replace(
        asked.request(front), dynamic_shapes=dynamic_shapes, training=training
    )
    asked.framework.inspect(model, request)
    if not front.points:
        msg = "the model is converted already; give the original, to plan it anew"
        raise UnsupportedError(msg)
    return tuple(front.points)


def graph_text(
    model: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    """Return ``model``, converted or not, as the text of a program graph.

    Raises:
        CaptureError: The model cannot be captured.
        UnsupportedError: The model is of no supported kind.
    """
    from amprewrite.registry import framework_of

    return framework_of(model).graph_text(model, args, kwargs)


def program_files(model: object) -> Mapping[str, str]:
    """Return the suffixes that :func:`save_program` accepts, and the reader of each.

    Raises:
        UnsupportedError: The model is of no supported kind.
    """
    from amprewrite.registry import framework_of

    return framework_of(model).program_files()


def save_program(
    converted: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    path: Path,
) -> None:
    """Write a converted model to ``path``, in the format that its suffix names.

    ``.pt2`` is an exported program of torch, ``.onnx`` ONNX, ``.stablehlo`` an exported
    program of JAX for CPU, CUDA and TPU.

    Raises:
        CaptureError: The model cannot be exported.
        UnsupportedError: The framework has no such file, or a package is missing.
    """
    from amprewrite.registry import framework_of

    framework_of(converted).save_program(converted, args, kwargs, path)


def calibrate() -> dict[str, Calibration]:
    """Time every installed framework on its default device, and save the results.

    From then on, plans for that device are priced by the saved results.

    Returns:
        The calibrations, by framework.

    Raises:
        UnsupportedError: No framework is installed, or a file cannot be written.
    """
    from amprewrite import registry

    frameworks = registry.installed()
    if not frameworks:
        msg = (
            "calibrate times torch and JAX, and neither is installed; "
            "pip install 'amprewrite[torch]' or 'amprewrite[jax]'"
        )
        raise UnsupportedError(msg)
    found: dict[str, Calibration] = {}
    for name, framework in frameworks.items():
        found[name] = framework.calibrate()
        save_calibration(found[name])
    return found


def verify(  # noqa: PLR0913  # the public signature; most are by keyword
    original: object,
    converted: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    *,
    reference: str = "float64",
    gradients: bool = False,
    rtol: float | None = None,
) -> Report:
    """Return a report on the errors of ``converted`` against ``original``.

    Args:
        original: The model that was converted.
        converted: A result of :func:`convert`, or any callable of the same signature.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        reference: Dtype in which ``original`` is run as the reference.
        gradients: Whether to compare gradients of parameters and float arguments too.
        rtol: Bound on the relative L2 error of every output, and of every gradient.

    Returns:
        A :class:`amprewrite.verify.Report`.

    Raises:
        ArgumentError: ``args`` is no tuple, or ``kwargs`` no mapping.
        ToleranceError: ``rtol`` is no number, or below 0.
        VerifyError: ``rtol`` is given and an output or a gradient is worse, or is not
            finite where the reference is; or the outputs differ in structure.
        UnsupportedError: The model, or ``reference``, is of no supported kind.
    """
    from amprewrite.frameworks.base import check_arguments
    from amprewrite.measure.runs import Call
    from amprewrite.registry import framework_of
    from amprewrite.verify.compare import verify as compare

    check_arguments(args, kwargs)
    call = Call(args, dict(kwargs or {}), reference, gradients)
    return compare(framework_of(original), original, converted, call, rtol)

"""Run a JAX function as its reference, as converted, and as baselines.

Converted functions are run eagerly, op by op, and compiled as a whole: XLA may keep
excess precision where it fuses ops, and the two then differ by as much as each differs
from the reference. Both are compared with the reference, never with each other.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from amprewrite.dtypes import is_float, itemsize
from amprewrite.errors import AmpError, UnsupportedError
from amprewrite.frameworks.jaxpr.capture.trace import check_values
from amprewrite.frameworks.jaxpr.compat import private
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.function.pure_function import (
    Subject,
    prepared_of,
    subject_of,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.lockstep import Lockstep
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import REFUSALS, Dtypes, Wide
from amprewrite.frameworks.jaxpr.probes.runner import Runner
from amprewrite.frameworks.jaxpr.probes.sensitivity import measure_sensitivity, watch
from amprewrite.frameworks.jaxpr.probes.tolerance import sample_of
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Program, all_steps
from amprewrite.measure.run_names import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Call, Measured, Run
from amprewrite.measure.samples import Observe, Walked
from amprewrite.plan.sensitivity import Sensitivity, probes_of

CAST_ALL = "cast all"
"""Name of the run with every float argument low."""

SCALE = 65536.0
"""Factor on the loss of functions in float16, against vanishing gradients.

Source: the initial scale of torch.amp.GradScaler.
"""


def measure(original: Any, converted: Any, call: Call) -> Measured:
    """Run both functions, and the original as each baseline.

    The failure of a baseline is recorded; the original and the converted function must
    run.

    Raises:
        UnsupportedError: Gradients are wanted, and the original has none; or an
            argument is a shape without values.
    """
    subject, other = subject_of(original, call), subject_of(converted, call)
    check_values("verify", subject.arrays)
    prepared = prepared_of(converted, call)
    plan = None if prepared is None else prepared.plan
    low = plan.low if plan is not None else "bfloat16"
    runner = Runner(
        arrays=subject.arrays,
        names=subject.names,
        trained=subject.trained if call.gradients else (),
        scale=SCALE if low == "float16" else 1.0,
    )
    runs = {ORIGINAL: _original(subject, runner)}
    runs[REFERENCE], dtype, notes = _reference(subject, runner, call.reference)
    theirs = replace(runner, arrays=other.arrays)
    runs[CONVERTED] = theirs.run(other.flat, jitted=False, derived_jitted=False)
    runs[JITTED] = theirs.run(other.flat, jitted=True)
    failures: dict[str, str] = {}
    if low:
        try:
            runs[CAST_ALL] = _cast_all(subject, runner, low)
        except Exception as error:  # noqa: BLE001  # a baseline's failure is a finding
            failures[CAST_ALL] = _first_line(error)
    return Measured(dtype, runs, failures, plan, low, tuple(notes))


def walk(original: Any, converted: Any, call: Call, observe: Observe) -> Walked:
    """Compare every op of a converted function with the original's.

    If an op does not run in the dtype of the reference, the walk starts again in
    float32.

    Args:
        original: The function.
        converted: The converted function.
        call: Arguments; the reference dtype.
        observe: Receives a sample of each op; those of the last walk count.
    """
    prepared = prepared_of(converted, call)
    if prepared is None:
        kind = type(converted).__name__
        return Walked(notes=(f"no errors by op: a {kind} has no plan",))
    subject, other = subject_of(original, call), subject_of(converted, call)
    if not _is_same_program(subject.program, prepared):
        return Walked(notes=("no errors by op: the original is another program",))
    notes: list[str] = []
    program = replace(prepared.program, constants=subject.program.constants)
    found = _sensitivity(subject, replace(prepared, program=program), notes)
    for reference in dict.fromkeys((call.reference, "float32")):
        wide = Wide(program, _wide_dtypes(subject, reference))
        steps = Lockstep(prepared, wide, lambda: _context(reference), observe)  # noqa: B023  # called in this turn
        try:
            steps.walk(other.arrays, subject.arrays)
        except REFUSALS as error:
            notes.append(f"no errors by op in {reference}: {_first_line(error)}")
        else:
            return Walked(reference, prepared.graph, tuple(notes), found)
    return Walked(notes=tuple(notes))


def _sensitivity(
    subject: Subject, prepared: Prepared, notes: list[str]
) -> Sensitivity | None:
    """Return the sensitivity of the outputs to a plan, if it can be measured."""
    if not prepared.plan.lowered:
        return None
    arguments = prepared.program, prepared.graph, subject.arrays, subject.result
    probes = probes_of(prepared.plan, prepared.graph)
    try:
        with private.evaluated_now():
            sample = sample_of(*arguments)
            return measure_sensitivity(sample, probes, None, watch(sample, probes))
    except (AmpError, *REFUSALS) as error:
        notes.append(f"no predicted error: {_first_line(error)}")
        return None


def _is_same_program(program: Program, prepared: Prepared) -> bool:
    """Return whether a plan is for a program, ignoring casts from a low trace."""
    one, two = (
        [
            (step.name, step.primitive, len(step.operands))
            for step in all_steps(p.steps)
            if not step.chosen
        ]
        for p in (program, prepared.program)
    )
    return one == two


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _original(subject: Subject, runner: Runner) -> Run:
    """Return the run of the unchanged original.

    Raises:
        UnsupportedError: Gradients are wanted, and it has none.
    """
    if not runner.trained:
        return runner.run(subject.flat, jitted=False)
    try:
        return runner.run(subject.flat, jitted=False)
    except Exception as error:
        replace(runner, trained=()).run(subject.flat, jitted=False)  # its own mistakes
        msg = (
            f"gradients=True: the original cannot be differentiated "
            f"({_first_line(error)}); verify it with gradients=False"
        )
        raise UnsupportedError(msg) from error


def _wide_dtypes(subject: Subject, target: str) -> Dtypes:
    """Return the float dtypes that are narrower than ``target``, each with it.

    They are float32 and the dtypes of arguments and constants: a dtype that occurs only
    in between is one that the program rounds to on purpose.
    """
    program = subject.program
    held = {dtype_name(program.avals[n]) for n in (*program.inputs, *program.constants)}
    floats = {"float32", *filter(is_float, held)}
    dtypes = {d: target for d in sorted(floats) if itemsize(d) < itemsize(target)}
    return {**dtypes, **({"complex64": "complex128"} if target == "float64" else {})}


def _context(reference: str) -> AbstractContextManager[Any]:
    """Enable float64, or full-precision float32 products, in the context."""
    if reference == "float64":
        return jax.enable_x64(True)
    return jax.default_matmul_precision("highest")


def _reference(
    subject: Subject, runner: Runner, wanted: str
) -> tuple[Run, str, list[str]]:
    """Return the reference run, its dtype, and notes about it."""
    notes: list[str] = []
    for dtype in dict.fromkeys((wanted, "float32")):
        wide = Wide(subject.program, _wide_dtypes(subject, dtype))
        try:
            with _context(dtype):
                run = _run_wide(subject, runner, wide)
        except Exception as error:
            if dtype == "float32":
                raise
            notes.append(
                f"the reference is float32: the function does not run in {dtype} "
                f"({_first_line(error)})"
            )
            continue
        if wide.kept:
            which = ", ".join(sorted(set(wide.kept.values())))
            notes.append(
                f"the reference runs {len(wide.kept)} steps in the dtypes that they "
                f"were traced in: {which}"
            )
        return run, dtype, notes
    raise AssertionError  # float32 returns or raises


def _run_wide(subject: Subject, runner: Runner, wide: Wide) -> Run:
    def flat(*arrays: Any) -> Any:
        return subject.built(wide.run(arrays))

    return runner.run(flat, wide.inputs(subject.arrays), jitted=True)


def _cast_all(subject: Subject, runner: Runner, low: str) -> Run:
    """Run the original on low arguments, as the simplest alternative.

    Closed-over arrays are out of a user's reach and would promote everything to
    float32: a function with such arrays is run with every value low.
    """
    program = subject.program
    if any(is_float(dtype_name(program.avals[name])) for name in program.constants):
        wide = Wide(program, {"float32": low, "float64": low})
        return _run_wide(subject, runner, wide)
    cast = [
        jnp.asarray(x, jnp.dtype(low)) if is_float(dtype_name(x)) else x
        for x in subject.arrays
    ]
    return runner.run(subject.flat, cast, jitted=True)

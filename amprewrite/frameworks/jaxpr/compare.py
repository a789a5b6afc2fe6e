"""Run a JAX function as its reference, as converted, and as baselines.

Converted functions are run eagerly, op by op, and compiled as a whole: XLA may keep
excess precision where it fuses ops, and the two then differ by as much as each differs
from the reference. Both are compared with the reference, never with each other.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from amprewrite.dtypes import is_float, itemsize
from amprewrite.errors import UnsupportedError
from amprewrite.execute.sensitivity import FAILURES
from amprewrite.frameworks.jaxpr.capture.trace import check_values, named_arrays
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.function.pure_function import (
    Subject,
    prepared_of,
    subject_of,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Dtypes, Wide
from amprewrite.frameworks.jaxpr.probes.lockstep import Lockstep
from amprewrite.frameworks.jaxpr.probes.restored_steps import Restoring, restorable
from amprewrite.frameworks.jaxpr.probes.runner import Runner, run_of
from amprewrite.frameworks.jaxpr.probes.sensitivity import measure_sensitivity, watch
from amprewrite.frameworks.jaxpr.probes.tolerance import sample_of
from amprewrite.frameworks.jaxpr.program.program import Program, all_steps, dtype_name
from amprewrite.ir import ProgramGraph
from amprewrite.measure import ORIGINAL
from amprewrite.measure.compare import Steps, compare, first_line, loss_scale
from amprewrite.measure.compare import walk as walk_both
from amprewrite.measure.runs import (
    Ablation,
    Call,
    Measured,
    Observe,
    Run,
    Stepped,
    Walked,
)
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity

CAST_ALL = "cast all"
"""Name of the run with every float argument low."""


def measure(
    original: Any, converted: Any, call: Call, steps: Steps | None = None
) -> Measured:
    """Run both functions, and the original as each baseline.

    The failure of a baseline is recorded; the original and the converted function must
    run.

    Args:
        original: The function.
        converted: The converted function.
        call: Arguments, reference dtype, whether gradients are compared.
        steps: Calls :func:`walk`; None for no walk.

    Raises:
        UnsupportedError: Gradients are wanted, and the original has none; or an
            argument is a shape without values.
    """
    subject, other = subject_of(original, call), subject_of(converted, call)
    check_values("verify", subject.arrays)
    prepared = prepared_of(converted, call)
    plan = None if prepared is None else prepared.plan
    runner = Runner(
        arrays=subject.arrays,
        names=subject.names,
        trained=subject.compared if call.gradients else (),
        scale=loss_scale(plan),
        inputs=subject.inputs,
    )
    plain = _original(subject, runner)
    source = _Measurer(subject, other, runner, plan, plain)
    return compare(source, call.reference, steps)


@dataclass
class _Measurer:
    """Runner of a function and its converted form.

    Attributes:
        subject: The function.
        other: Its converted form.
        runner: Runs both.
        plan: The plan of the converted form.
        plain: The run of the function as it is.
    """

    subject: Subject
    other: Subject
    runner: Runner
    plan: Plan | None
    plain: Run
    model: str = "function"

    def reference(self, dtype: str) -> tuple[Run, list[str]]:
        wide = Wide(self.subject.program, _wide_dtypes(self.subject, dtype))
        with _context(dtype):
            run = _run_wide(self.subject, self.runner, wide)
        return run, _kept(wide)

    def converted(self) -> Run:
        return self._theirs.run(self.other.flat, jitted=False, derived_jitted=False)

    def compiled(self) -> Run:
        return self._theirs.run(self.other.flat, jitted=True)

    def baselines(self, low: str) -> Mapping[str, Callable[[], Run]]:
        cast_all = {CAST_ALL: partial(_cast_all, self.subject, self.runner, low)}
        return {ORIGINAL: lambda: self.plain, **(cast_all if low else {})}

    def notes(self) -> list[str]:
        return []

    @property
    def shares_reference(self) -> bool:
        return not self.runner.trained

    def noted(self, dtype: str) -> list[str]:
        """Return none: the walk has the same notes."""
        del dtype
        return []

    @property
    def _theirs(self) -> Runner:
        return replace(self.runner, arrays=self.other.arrays)


def walk(original: Any, converted: Any, call: Call, observe: Observe) -> Walked:
    """Compare every op of a converted function with the original's.

    Args:
        original: The function.
        converted: The converted function.
        call: Arguments; the reference dtype.
        observe: Receives a sample of each op; those of the last walk count.
    """
    return walk_both(_walker(original, converted, call), call.reference, observe)


def ablation(original: Any, converted: Any, call: Call) -> Ablation | str:
    """Return a converted function with ops that can be restored, or why there is none.

    Args:
        original: The function.
        converted: The converted function.
        call: The arguments.
    """
    walker = _walker(original, converted, call)
    if isinstance(walker, str):
        return walker
    found = walker.read()
    return found if isinstance(found, str) else _Ablation(walker)


def _walker(original: Any, converted: Any, call: Call) -> "_Walker | str":
    """Return both forms of a function, or why they are not run side by side."""
    prepared = prepared_of(converted, call)
    if prepared is None:
        return f"a {type(converted).__name__} has no plan"
    subject, other = subject_of(original, call), subject_of(converted, call)
    return _Walker(subject, other, prepared, prepared.plan)


class _Ablation:
    """A converted function, of which each run restores other steps.

    Args:
        walker: The function and the original, traced once.
    """

    def __init__(self, walker: "_Walker") -> None:
        """Keep the programs; nothing is run."""
        self.walker, self.plan = walker, walker.plan
        self.graph = walker.prepared.graph
        self.restorable = restorable(walker.prepared.program)
        self.seconds: dict[str, float] = {}

    def run(self, restored: Collection[str]) -> Run:
        walker = self.walker
        running = walker.prepared, walker.program, restored, self.seconds

        def flat(*arrays: Any) -> Any:
            return walker.subject.built(Restoring(*running)(arrays))

        runner = Runner(walker.other.arrays, walker.other.names)
        return runner.run(flat, jitted=False)


@dataclass
class _Walker:
    """A function and its converted form, to be run side by side.

    Attributes:
        subject: The function.
        other: Its converted form.
        prepared: The program of the converted form.
        plan: Its plan.
    """

    subject: Subject
    other: Subject
    prepared: Prepared
    plan: Plan
    refusals: tuple[type[Exception], ...] = FAILURES

    def isolated(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> ProgramGraph | str:
        if not _is_same_program(self.subject.program, self.prepared):
            return "the original is another program"
        return self.prepared.graph

    def sensitivity(self, probes: Probes) -> Sensitivity:
        subject, graph = self.subject, self.prepared.graph
        with tracers.evaluated_now():
            sample = sample_of(self.program, graph, subject.arrays, subject.result)
            return measure_sensitivity(sample, probes, None, watch(sample, probes))

    def steps(self, dtype: str, observe: Observe) -> Stepped:
        wide = Wide(self.program, _wide_dtypes(self.subject, dtype))
        steps = Lockstep(self.prepared, wide, lambda: _context(dtype), observe)
        made = steps.walk(self.other.arrays, self.subject.arrays)
        with _context(dtype):
            found = named_arrays(self.subject.built(made))
        return Stepped((), run_of(found), _kept(wide))

    @property
    def program(self) -> Program:
        """The program of the plan, with the constants of the original."""
        constants = self.subject.program.constants
        return replace(self.prepared.program, constants=constants)


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
            f"({first_line(error)}); verify it with gradients=False"
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


def _kept(wide: Wide) -> list[str]:
    """Return the note on steps that a reference runs in the dtypes of the trace."""
    if not wide.kept:
        return []
    which = ", ".join(sorted(set(wide.kept.values())))
    note = (
        f"the reference runs {len(wide.kept)} steps in the dtypes that they "
        f"were traced in: {which}"
    )
    return [note]


def _run_wide(subject: Subject, runner: Runner, wide: Wide) -> Run:
    def flat(*arrays: Any) -> Any:
        return subject.built(wide(arrays))

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

"""Trace programs of mixed dtypes with the operands of each primitive promoted.

``jax.numpy`` promotes its operands. Below it, ``jax.lax`` refuses operands of different
dtypes, and ``dot_general`` accepts them but returns the dtype of one: float16 with
bfloat16 gives bfloat16. During such a trace, operands are cast to their common dtype by
the rules of a promotion system, values written into an array are cast to its dtype, and
loop carries keep their dtypes. The casts are traced in a scope of their own and removed
from the program again, so that the plan can place them.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amprewrite.dtypes import (
    FORMATS,
    Behaviour,
    Operand,
    Processor,
    Rule,
    is_float,
    same_kind,
)
from amprewrite.errors import ComplexTruncationError, PromotionError
from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.compat.binding import (
    STATE,
    Watcher,
    unwatched,
    watching,
)
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax, tree_util
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Body,
    Number,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    dtype_name,
    names_of,
    reads_of,
    sources_of,
)
from amprewrite.frameworks.jaxpr.program.scopes import PROMOTED

SAME = Rule(Behaviour.SAME)
CHOSEN = Rule(Behaviour.SAME, roles="-x")
WRITTEN = Rule(Behaviour.FOLLOW_SELF, roles="xx-")
SCATTERED = Rule(Behaviour.FOLLOW_SELF, roles="x-x")

RULES = {
    **dict.fromkeys(("add", "add_any", "sub", "mul", "div", "rem", "pow"), SAME),
    **dict.fromkeys(("max", "min", "atan2", "nextafter", "complex", "clamp"), SAME),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), SAME),
    **dict.fromkeys(("and", "or", "xor"), SAME),
    **dict.fromkeys(("shift_left", "shift_right_logical"), SAME),
    **dict.fromkeys(("shift_right_arithmetic", "igamma", "igammac"), SAME),
    **dict.fromkeys(("regularized_incomplete_beta", "zeta", "polygamma"), SAME),
    **dict.fromkeys(("concatenate", "dot_general", "conv_general_dilated"), SAME),
    **dict.fromkeys(("ragged_dot_general", "triangular_solve"), SAME),
    "select_n": CHOSEN,
    "dynamic_update_slice": WRITTEN,
    "pad": WRITTEN,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul"), SCATTERED),
    **dict.fromkeys(("scatter-max", "scatter-min", "scatter-sub"), SCATTERED),
}
"""Dtype rules of the primitives that need operands of one dtype."""


@contextmanager
def promoting(processor: Processor | None) -> Generator[None]:
    """Promote the operands of primitives traced inside; None promotes nothing.

    Raises:
        PromotionError: Operands have no common dtype.
        ComplexTruncationError: An imaginary part would be dropped.
    """
    if processor is None:
        yield
        return
    promoter = Promoter(processor)
    functions = {
        "scan": promoter.scan,
        "while_loop": promoter.while_loop,
        "cond": promoter.cond,
        "switch": promoter.switch,
        STATE: promoter.set_state,
    }
    watcher = Watcher(promoter.operands, functions)
    with watching(watcher, repr(processor)):
        yield


@contextmanager
def tracing(processor: Processor | None) -> Generator[None]:
    """Promote as :func:`promoting`, and silence JAX's warnings about the casts.

    A value written into an array is cast to its dtype, by rule; JAX does the same for
    ``x.at[i].set(y)``, and warns that this may end. Where imaginary parts are kept, a
    cast that drops one is refused in the graph, with its line.
    """
    if processor is None:
        yield
        return
    with promoting(processor), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types")
        if not processor.truncate_complex:
            warnings.filterwarnings("ignore", "Casting from complex to real dtypes")
            complex_warning = np.exceptions.ComplexWarning
            warnings.filterwarnings("ignore", category=complex_warning)
        yield


@dataclass(frozen=True)
class Promoter:
    """Caster of the operands, carries and branches of a trace.

    Attributes:
        processor: The promotion system.
    """

    processor: Processor

    def operands(self, primitive: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the operands of a primitive, cast to its computing dtype."""
        rule = RULES.get(primitive.name)
        if rule is None:
            return args
        roles = enumerate(rule.roles_of(len(args)))
        read = [index for index, role in roles if role == "x"]
        try:
            types = {index: jax.typeof(args[index]) for index in read}
        except TypeError:  # no array: JAX says so
            return args
        dtypes = {index: dtype_name(held) for index, held in types.items()}
        used = list(dtypes.values())
        if len(set(used)) <= 1 or not _joins(primitive.name, used):
            return args
        if rule.behaviour is Behaviour.FOLLOW_SELF and not _is_writable(*used[::-1]):
            return args  # JAX says that it refuses
        wanted = self._computes(primitive.name, rule, list(types.values()))
        return tuple(
            self.cast(x, wanted) if dtypes.get(index, wanted) != wanted else x
            for index, x in enumerate(args)
        )

    def _computes(self, where: str, rule: Rule, types: Sequence[Any]) -> str:
        """Return the computing dtype of a primitive for operands of given types.

        Raises:
            PromotionError: They have none in common.
            ComplexTruncationError: An imaginary part would be dropped.
        """
        system = replace(self.processor, x64=jax.config.jax_enable_x64)
        given = [Operand(dtype_name(x), x.ndim, bool(x.weak_type)) for x in types]
        try:
            return system.apply(replace(rule, roles=""), *given).computes
        except (PromotionError, ComplexTruncationError) as error:
            raise type(error)(f"{_place()}{where}: {error}") from None

    def cast(self, value: Any, dtype: str) -> Any:
        """Return ``value`` cast to ``dtype``, in the scope of promotion casts."""
        with jax.named_scope(PROMOTED), unwatched():
            if is_float(dtype) and dtype_name(jax.typeof(value)).startswith("complex"):
                value = lax.real(value)
            return lax.convert_element_type(value, jnp.dtype(dtype))

    def kept(self, made: Any, before: Any, kind: str = "carry") -> Any:
        """Return the outputs of a loop body or call, cast to their dtypes before it.

        Args:
            made: A tree of arrays after the body.
            before: The tree before it.
            kind: ``carry``, where numbers adapt, or ``state``.

        Raises:
            ComplexTruncationError: A real number became a complex one.
        """
        new, structure = tree_util.tree_flatten(made)
        old, expected = tree_util.tree_flatten(before)
        if structure != expected:  # JAX says so
            return made
        pairs = zip(new, old, strict=True)
        kept = [self._kept(x, y, kind) for x, y in pairs]
        return tree_util.tree_unflatten(structure, kept)

    def _kept(self, new: Any, old: Any, kind: str) -> Any:
        found, stored = jax.typeof(new), jax.typeof(old)
        names = dtype_name(found), dtype_name(stored)
        adapts = kind == "carry" and getattr(stored, "weak_type", False)
        if names[0] == names[1] or adapts or not _is_writable(*names):
            return new  # JAX lets a carry adapt that is a number, and says the rest
        truncates = names[0].startswith("complex") and is_float(names[1])
        if truncates and not self.processor.truncate_complex:
            msg = (
                f"{_place()}found {names[0]} for a {kind} of {names[1]}: to keep that "
                f"dtype drops the imaginary part; want a {kind} that holds it: "
                f"initialise it as {names[0]}, or let the policy allow it: "
                f"[promotion] truncate_complex = true"
            )
            raise ComplexTruncationError(msg)
        return self.cast(new, names[1])

    def set_state(self, set_state: Any, state: Any, item: Any, value: Any) -> Any:
        """Run ``equinox.nn.State.set`` such that the state keeps its dtype."""
        return set_state(state, item, self.kept(value, state.get(item), "state"))

    def scan(self, scan: Any, f: Any, init: Any, *args: Any, **kwargs: Any) -> Any:
        """Run ``jax.lax.scan`` with the carry kept in its dtype."""

        @functools.wraps(f)
        def turn(carry: Any, x: Any) -> Any:
            made = f(carry, x)
            try:
                new, slices = made
            except (TypeError, ValueError):  # JAX says that it is no pair
                return made
            return self.kept(new, init), slices

        return scan(turn, init, *args, **kwargs)

    def while_loop(self, loop: Any, cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
        """Run ``jax.lax.while_loop`` with the carry kept in its dtype."""

        @functools.wraps(body_fun)
        def turn(carry: Any) -> Any:
            return self.kept(body_fun(carry), init_val)

        return loop(cond_fun, turn, init_val)

    def cond(self, cond: Any, pred: Any, *args: Any, **kwargs: Any) -> Any:
        """Run ``jax.lax.cond``; branches that differ in dtype give the common one."""
        names = [key for key in ("true_fun", "false_fun") if key in kwargs]
        rest = args[2 - len(names) :]
        given = [*args[: 2 - len(names)], *(kwargs.pop(key) for key in names)]

        def run(branches: Sequence[Any]) -> Any:
            return cond(pred, *branches, *rest, **kwargs)

        return self._branched(run, given, rest, kwargs)

    def switch(
        self,
        switch: Any,
        index: Any,
        branches: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run ``jax.lax.switch``; branches that differ give the common dtype."""

        def run(branches: Sequence[Any]) -> Any:
            return switch(index, branches, *args, **kwargs)

        return self._branched(run, list(branches), args, kwargs)

    def _branched(
        self,
        run: Callable[[Sequence[Any]], Any],
        branches: Sequence[Any],
        args: Sequence[Any],
        kwargs: Any,
    ) -> Any:
        """Run branches as they are, or with promoted outputs if JAX refuses them."""
        try:
            return run(branches)
        except TypeError:
            if not all(map(callable, branches)):
                raise
            read = [kwargs["operand"]] if "operand" in kwargs else args
            made = [jax.eval_shape(branch, *read) for branch in branches]
            wanted = self._common(made)
            if wanted is None:
                raise
        return run([self._giving(branch, wanted) for branch in branches])

    def _common(self, made: Sequence[Any]) -> Any:
        """Return the common output dtypes of branches; None if they need no promotion.

        None too for branches that differ in structure or shape.
        """
        if len({tree_util.tree_structure(x) for x in made}) > 1:
            return None
        rows = list(zip(*map(tree_util.tree_leaves, made), strict=True))
        if any(len({x.shape for x in row}) > 1 for row in rows):
            return None
        if all(len({x.dtype for x in row}) == 1 for row in rows):
            return None

        def common(*row: Any) -> str:
            differ = len({x.dtype for x in row}) > 1
            return self._computes("cond", SAME, row) if differ else dtype_name(row[0])

        return tree_util.tree_map(common, *made)

    def _giving(self, branch: Any, dtypes: Any) -> Any:
        def one(x: Any, dtype: str) -> Any:
            return x if dtype_name(jax.typeof(x)) == dtype else self.cast(x, dtype)

        def run(*args: Any) -> Any:
            return tree_util.tree_map(one, branch(*args), dtypes)

        return run


def _joins(primitive: str, dtypes: Sequence[str]) -> bool:
    """Return whether operands are promoted: only numbers are, not keys or tokens.

    A power with an integer exponent is not: it is another op than a power of floats.
    """
    if not all(dtype in FORMATS for dtype in dtypes):
        return False
    return primitive != "pow" or FORMATS[dtypes[1]].kind in ("float", "complex")


def _is_writable(new: str, stored: str) -> bool:
    """Return whether a cast of ``new`` to ``stored`` is allowed; see ``same_kind``."""
    if new not in FORMATS or stored not in FORMATS:
        return False
    return same_kind(new, stored) or (new.startswith("complex") and is_float(stored))


def _place() -> str:
    """Return the user's line that is being traced, as a prefix of a message."""
    line = equations.current_line()
    return f"{line}: " if line else ""


# Remove the casts of promotion from a program, recording them at their readers.
#
# The plan then has these casts, with reasons, as any others. The same holds for the
# cast of a new state to its old dtype, which JAX makes where an array is written.

CAST = "convert_element_type"


def take_out(program: Program) -> Program:
    """Return ``program`` without the casts inserted by promotion during tracing."""
    program = _without_state_casts(program)
    steps = list(all_steps(program.steps))
    stays = set(_read_as_they_are(program, steps))
    taken = {
        step.results[0]: (step.operands[0], dtype_name(step.eqn.outvars[0].aval))
        for step in steps
        if _is_promotion(step) and step.results[0] not in stays
    }
    if not taken:
        return program
    found = _TakeOut(taken)
    return replace(program, steps=found.steps(program.steps))


def _is_promotion(step: Step) -> bool:
    """Return whether a step is a promotion cast, not the derivative of one."""
    derived = "transpose" in equations.transformations(step.stack)
    own = step.primitive == CAST and step.scopes[-1:] == (PROMOTED,)
    return own and not derived


def _read_as_they_are(program: Program, steps: Iterable[Step]) -> Iterator[str]:
    """Yield values passed on under their own name: their readers are unknown here."""
    yield from names_of(program.outputs)
    for step in steps:
        if not step.bodies:
            continue
        enters = (enter for body in step.bodies for enter in body.enters)
        crossed = set(sources_of((*step.leaves, *enters)))
        handed = (*step.operands, *(a for b in step.bodies for a in b.outputs))
        yield from (name for name in names_of(handed) if name not in crossed)


@dataclass(frozen=True)
class _TakeOut:
    """Rewriter of the readers of removed casts.

    Attributes:
        taken: The removed casts by result: their operand and target dtype.
    """

    taken: Mapping[str, tuple[Atom, str]]

    def steps(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        kept = (s for s in steps if not (s.results and s.results[0] in self.taken))
        return tuple(map(self._step, kept))

    def _step(self, step: Step) -> Step:
        if step.bodies:
            return replace(
                step,
                operands=self._sources(step.operands),
                bodies=tuple(map(self._body, step.bodies)),
                leaves=tuple(map(self._boundary, step.leaves)),
            )
        operands, wants = self._read(step.operands)
        return replace(step, operands=operands, wants=wants)

    def _body(self, body: Body) -> Body:
        return replace(
            body,
            inputs=self._sources(body.inputs),
            enters=tuple(map(self._boundary, body.enters)),
            steps=self.steps(body.steps),
            outputs=self._sources(body.outputs),
        )

    def _boundary(self, boundary: RegionBoundary | None) -> RegionBoundary | None:
        if boundary is None:
            return None
        reads, wants = self._read(boundary.reads)
        return replace(boundary, reads=reads, wants=wants)

    def _sources(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        return tuple(self._source(atom)[0] for atom in atoms)

    def _source(self, atom: Atom) -> tuple[Atom, str]:
        """Return the operand and target dtype of a removed cast, or the atom."""
        found = self.taken.get(atom) if isinstance(atom, str) else None
        return found or (atom, "")

    def _read(
        self, atoms: tuple[Atom, ...]
    ) -> tuple[tuple[Atom, ...], tuple[str, ...]]:
        """Return the operands without casts, and the dtypes that they are read in."""
        pairs = [self._source(atom) for atom in atoms]
        sources = tuple(_as_number(atom, dtype) for atom, dtype in pairs)
        wants = tuple(dtype for atom, dtype in pairs if isinstance(atom, str))
        return sources, wants if any(wants) else ()


def _as_number(atom: Atom, dtype: str) -> Atom:
    """Return a number in the dtype that it was cast to."""
    if not isinstance(atom, Number) or not dtype:
        return atom
    return Number(np.asarray(atom.value, jnp.dtype(dtype)), dtype)


def _without_state_casts(program: Program) -> Program:
    """Return ``program`` without the final casts of its states.

    A cast with other users stays, unless promotion made it.
    """
    makers = {name: step for step in program.steps for name in step.results}
    uses = Counter(names_of(program.outputs))
    uses.update(name for step in program.steps for name in reads_of(step))
    outputs = list(program.outputs)
    taken: set[str] = set()
    for index, state in program.states:
        atom = outputs[index]
        if not isinstance(atom, str) or atom not in makers:
            continue
        step = makers[atom]
        if step.primitive != CAST:
            continue
        if uses[atom] > 1 and not _is_promotion(step):
            continue
        (source,) = step.operands
        stored = dtype_name(program.avals[state])
        if isinstance(source, Number) or stored != dtype_name(program.avals[atom]):
            continue
        if is_float(stored) and is_float(dtype_name(program.avals[source])):
            outputs[index] = source
            taken.update(step.results if uses[atom] == 1 else ())
    steps = tuple(s for s in program.steps if not taken.intersection(s.results))
    return replace(program, steps=steps, outputs=tuple(outputs))

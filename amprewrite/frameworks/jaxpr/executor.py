"""Run a program step by step: the only walk over the equations of a program.

:class:`ProgramExecutor` runs the steps of a program in order, and every body (of a
loop, a branch, a checkpoint, a custom rule or a manual mesh) through the public
function of JAX, so that JAX's own rules for differentiation and batching apply. Run
under a trace, it emits the program again.

A consumer is a subclass that overrides hooks: the dtype of a value
(:meth:`~ProgramExecutor.dtype_of`), how an operand is read
(:meth:`~ProgramExecutor.on_read`), how a step computes
(:meth:`~ProgramExecutor.evaluate`), its results
(:meth:`~ProgramExecutor.on_result`), values that pass into and out of bodies
(:meth:`~ProgramExecutor.on_pass`), and how loops, branches and rules run.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from jax.custom_derivatives import SymbolicZero

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.compat import equations, tracers
from amprewrite.frameworks.jaxpr.compat.equations import current, place_in
from amprewrite.frameworks.jaxpr.compat.primitives import bind, convert
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax, tree_util
from amprewrite.frameworks.jaxpr.program.inline import JITS, SHARED
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Body,
    Number,
    Program,
    RegionBoundary,
    Step,
    dtype_name,
    names_of,
)

Env = dict[Any, Any]
"""Values by name; consumers may keep others under other keys."""

Turn = Callable[..., Any]
"""One iteration of a loop, or its test."""

Rule = Callable[..., Any]
"""A custom rule as JAX calls it: flat arguments, some of them not arrays."""

ARRAY = object()
"""Placeholder for an array in the result of a rule, where None is a valid part."""


class ProgramExecutor:
    """Interpreter of a program; a consumer overrides its hooks.

    Attributes:
        program: The program.
        in_place: Primitives with a body that is run among the steps around it, once,
            without the function of JAX that it belongs to.
    """

    in_place: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, program: Program) -> None:
        """Store the program; nothing is run."""
        self.program = program

    def __call__(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs of the program on ``inputs``, arrays in its order."""
        env = self.start(inputs)
        self.run(self.program.steps, env)
        return self.outputs(env)

    # --- hooks -----------------------------------------------------------------------

    def dtype_of(self, name: str) -> str:
        """Return the dtype in which a value is stored; that of the trace."""
        return self.rule_dtype(self.program.avals[name])

    def rule_dtype(self, aval: Any) -> str:
        """Return the dtype in which a custom rule receives a value of type ``aval``."""
        return dtype_name(aval)

    def start(self, inputs: Iterable[Any]) -> Env:
        """Return the values that exist before the first step."""
        env: Env = dict(self.program.constants)
        env.update(zip(self.program.inputs, inputs, strict=True))
        return env

    def outputs(self, env: Env) -> list[Any]:
        """Return the outputs, from the values at the end."""
        return [self.output(atom, env) for atom in self.program.outputs]

    def output(self, atom: Atom, env: Env) -> Any:
        """Return one output: an array also if it is a number."""
        if not isinstance(atom, Number):
            return env[atom]
        if atom.dtype == "float0":  # depends on no input
            return atom.value
        return jnp.asarray(atom.value, None if atom.weak else atom.dtype)

    def on_step(self, step: Step, env: Env) -> Sequence[Any]:
        """Return the results of a step; called once for each step, at every depth."""
        if not step.bodies:
            return self.plain(step, env)
        if step.primitive in self.in_place:
            return self.run_in_place(step, env)
        return getattr(self, CONTROL[step.primitive])(step, env)

    def plain(self, step: Step, env: Env) -> Sequence[Any]:
        """Return the results of a step without bodies."""
        return self.evaluate(step, self.operands(step, env))

    def evaluate(self, step: Step, operands: list[Any]) -> Sequence[Any]:
        """Return the results of a step without bodies on its operands, as they are."""
        return bind(step.eqn.primitive, operands, equations.bind_params(step.eqn))

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        """Return a result of a step as it is stored; ``name`` is its name."""
        del step, name
        return value

    def on_read(self, op: str, index: int, name: str, env: Env) -> Any:
        """Return a value as operand ``index`` of ``op`` reads it; numbers do not count.

        Args:
            op: Name of a step, or of a boundary of a body.
            index: Position among the operands that have a name.
            name: Name of the value.
            env: Values by name.
        """
        del op, index
        return env[name]

    def literal(self, atom: Number) -> Any:
        """Return the value of a number."""
        return atom.value

    def number(self, step: Step, atom: Number) -> Any:
        """Return a number as a step without bodies reads it."""
        del step
        return self.literal(atom)

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        """Return a value as it is on the other side of a boundary.

        Args:
            boundary: The boundary.
            value: The value as its op reads it, or a :class:`Number`.
        """
        del boundary
        return self.literal(value) if isinstance(value, Number) else value

    def on_scan(
        self, step: Step, turn: Turn, carry: list[Any], slices: Any
    ) -> tuple[list[Any], Any]:
        """Run a loop of known length; return its last carry, and stacked results.

        Args:
            step: The loop.
            turn: Function of a carry and slices, which returns a carry and results.
            carry: The first carry.
            slices: A tree of arrays with an extent of iterations.
        """
        params = step.eqn.params
        names = ("length", "reverse", "unroll")
        return lax.scan(turn, carry, slices, **{name: params[name] for name in names})

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        """Run a loop of unknown length; return its last carry.

        Args:
            step: The loop.
            test: Function of a carry that returns whether the loop goes on.
            turn: Function of a carry that returns the next one.
            start: The first carry.
        """
        del step
        return lax.while_loop(test, turn, start)

    def branch_of(self, step: Step, env: Env) -> int | None:
        """Return the branch to run in place; None to let JAX choose."""
        del step, env

    def converted(
        self,
        fun: Callable[..., list[Any]],
        operands: Sequence[Any],
        tangents: Iterable[int],
        exact: Iterable[int],
    ) -> Sequence[Any]:
        """Return the outputs of a custom rule of the user.

        Args:
            fun: The rule, as a function of arrays.
            operands: The arrays.
            tangents: Positions of the operands that are tangents.
            exact: Positions of the outputs that make exact arguments, to be read after
                ``fun`` was called.
        """
        del tangents, exact
        return fun(*operands)

    def makes_exact(self, name: str) -> bool:
        """Return whether a value makes exact arguments."""
        del name
        return False

    # --- steps -----------------------------------------------------------------------

    def run(self, steps: Iterable[Step], env: Env) -> None:
        """Run ``steps`` and store their results in ``env``."""
        around = current()
        for step in steps:
            place = place_in(around, step.eqn, step.stack)
            with place, step.eqn.ctx.manager:
                results = self.on_step(step, env)
                for name, value in zip(step.results, results, strict=True):
                    env[name] = self.on_result(step, name, value)

    def get(self, atom: Atom, env: Env) -> Any:
        """Return the stored value of ``atom``."""
        return self.literal(atom) if isinstance(atom, Number) else env[atom]

    def operands(self, step: Step, env: Env) -> list[Any]:
        """Return the operands of a step without bodies, as it reads them."""
        values: list[Any] = []
        index = 0
        for atom in step.operands:
            if isinstance(atom, Number):
                values.append(self.number(step, atom))
            else:
                values.append(self.on_read(step.name, index, atom, env))
                index += 1
        return values

    def constants(self, env: Env) -> Env:
        """Return the closed-over values, which bodies read without a boundary."""
        names = self.program.constants
        return {name: env[name] for name in names if name in env}

    # --- bodies ----------------------------------------------------------------------

    def cross(self, boundary: RegionBoundary, env: Env, which: int = 0) -> Any:
        """Return the value that passes by ``boundary``.

        Args:
            boundary: The boundary.
            env: Values on the side of its source.
            which: Index of the source body, if there are several.
        """
        atom = boundary.reads[which]
        if isinstance(atom, Number):
            return self.on_pass(boundary, atom)
        index = len(names_of(boundary.reads[:which]))
        return self.on_pass(boundary, self.on_read(boundary.op, index, atom, env))

    def entering(self, body: Body, env: Env) -> list[Any]:
        """Return the values that enter ``body`` by boundaries, in order."""
        return [self.cross(enter, env) for enter in body.enters if enter is not None]

    def inside(self, body: Body, outer: Env, entered: Sequence[Any]) -> Env:
        """Run ``body`` on the values that entered it, and return all its values."""
        names = (e.makes for e in body.enters if e is not None)
        env = {**outer, **dict(zip(names, entered, strict=True))}
        self.run(body.steps, env)
        return env

    def leaving(self, step: Step, env: Env, which: int = 0) -> list[Any]:
        """Return the results of a step, from the values inside of one of its bodies."""
        outputs = step.bodies[-1].outputs  # only a single body has no boundaries
        return [
            self.get(atom, env) if leave is None else self.cross(leave, env, which)
            for atom, leave in zip(outputs, step.leaves, strict=True)
        ]

    def run_in_place(self, step: Step, env: Env, which: int = 0) -> list[Any]:
        """Run a body once, without its control flow."""
        body = step.bodies[which]
        inner = self.inside(body, env, self.entering(body, env))
        return self.leaving(step, inner, which)

    def shared(self, step: Step, env: Env) -> tuple[Callable[..., Any], list[Any]]:
        """Return a body that reads outer values as a function of them, and the values.

        Each value that the body reads is one argument.
        """
        (body,) = step.bodies
        names = list(dict.fromkeys(names_of(step.operands)))
        outer = self.constants(env)

        def run(*values: Any) -> list[Any]:
            inner = {**outer, **dict(zip(names, values, strict=True))}
            self.run(body.steps, inner)
            return self.leaving(step, inner)

        return run, [env[name] for name in names]

    def scan(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a loop of known length."""
        (body,) = step.bodies
        consts, carries = equations.scan_counts(step.eqn)
        outer = self.constants(env)
        parts: tuple[list[Any], ...] = ([], [], [])
        for i, enter in enumerate(body.enters):
            if enter is not None:
                kind = (i >= consts) + (i >= consts + carries)
                parts[kind].append(self.cross(enter, env))
        fixed, start, slices = parts

        def turn(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            inner = self.inside(body, outer, [*fixed, *carry, *slices])
            left = self.leaving(step, inner)
            return left[:carries], left[carries:]

        carry, stacked = self.on_scan(step, turn, start, slices)
        return [*carry, *stacked]

    def while_loop(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a loop; a batched one iterates until all rows end, and freezes them.

        ``vmap`` makes a test of many rows, which JAX can run but its public function
        does not accept.
        """
        test, body = step.bodies
        outer = self.constants(env)

        def split(body: Body, consts: int) -> tuple[list[Any], list[Any]]:
            flags = [i < consts for i, e in enumerate(body.enters) if e is not None]
            pairs = list(zip(self.entering(body, env), flags, strict=True))
            return [v for v, f in pairs if f], [v for v, f in pairs if not f]

        tested, _ = split(test, step.eqn.params["cond_nconsts"])
        turned, start = split(body, step.eqn.params["body_nconsts"])
        batched = bool(step.eqn.params["cond_jaxpr"].out_avals[0].shape)

        def rows(carry: list[Any]) -> Any:
            inner = self.inside(test, outer, [*tested, *carry])
            return self.get(test.outputs[0], inner)

        def goes_on(carry: list[Any]) -> Any:
            flags = rows(carry)
            return flags if jnp.ndim(flags) == 0 else jnp.any(flags)

        def turn(carry: list[Any]) -> list[Any]:
            inner = self.inside(body, outer, [*turned, *carry])
            after = self.leaving(step, inner)
            if not batched:
                return after
            flags = rows(carry)
            return [_chosen(flags, n, o) for n, o in zip(after, carry, strict=True)]

        return self.on_loop(step, goes_on, turn, start)

    def cond(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a branch."""
        place = self.branch_of(step, env)
        if place is not None:
            return self.run_in_place(step, env, place)
        outer = self.constants(env)

        def branch(which: int, body: Body) -> Callable[..., list[Any]]:
            def run(entered: list[list[Any]]) -> list[Any]:
                inner = self.inside(body, outer, entered[which])
                return self.leaving(step, inner, which)

            return run

        branches = [branch(i, body) for i, body in enumerate(step.bodies)]
        entered = [self.entering(body, env) for body in step.bodies]
        return lax.switch(self.get(step.operands[0], env), branches, entered)

    def shard_map(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a body on each device of a mesh."""
        (body,), params = step.bodies, step.eqn.params
        outer = self.constants(env)
        pairs = zip(params["in_specs"], body.enters, strict=True)

        def run(*entered: Any) -> list[Any]:
            return self.leaving(step, self.inside(body, outer, entered))

        mapped = jax.shard_map(
            run,
            mesh=params["mesh"],
            in_specs=tuple(spec for spec, enter in pairs if enter is not None),
            out_specs=list(params["out_specs"]),
            axis_names=equations.manual_axes(step.eqn),
            check_vma=params["check_vma"],
        )
        return mapped(*self.entering(body, env))

    def checkpoint(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a body that is computed again in the backward pass."""
        run, values = self.shared(step, env)
        params = step.eqn.params
        again = jax.checkpoint(
            run, policy=params["policy"], prevent_cse=params["prevent_cse"]
        )
        return again(*values)

    def jit(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a jit that fixes shardings or donates; others are inlined."""
        run, values = self.shared(step, env)
        params, sharding = step.eqn.params, equations.sharding_argument
        names = [a if isinstance(a, str) else None for a in step.operands]
        firsts = [names.index(name) for name in dict.fromkeys(names) if name]
        jitted = jax.jit(
            run,
            in_shardings=tuple(sharding(params["in_shardings"][i]) for i in firsts),
            out_shardings=[sharding(s) for s in params["out_shardings"]],
        )
        return jitted(*values)

    # --- custom rules ----------------------------------------------------------------
    #
    # A rule of the user was written for, and is checked by JAX at, the traced dtypes.
    # The value of a custom JVP function may be stored in another dtype, because its
    # rule is called with primals and tangents cast to the traced dtypes, and its
    # results are cast back; a custom VJP function passes all values in their traced
    # dtypes.

    def custom_jvp(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a custom JVP function; values pass in the dtypes they are stored in."""
        params = equations.bind_params(step.eqn)
        fun, rule = params.pop("subfuns")
        traced = [self.rule_dtype(var.aval) for var in step.eqn.invars]
        stored = [self.dtype_of(name) for name in step.results]
        exact = self._exact(step)
        (body,), outer = step.bodies, self.constants(env)

        def value(*operands: Any) -> list[Any]:
            pairs = zip(step.operands, operands, strict=True)
            inner = {**outer, **{a: x for a, x in pairs if isinstance(a, str)}}
            self.run(body.steps, inner)
            return self.leaving(step, inner)

        def jvp(*primals_and_tangents: Any) -> list[Any]:
            pairs = zip(primals_and_tangents, traced * 2, strict=True)
            run = self._partially(rule.call_wrapped, exact, len(traced))
            out = run(*(_as(x, dtype) for x, dtype in pairs))
            return [_as(x, dtype) for x, dtype in zip(out, stored * 2, strict=True)]

        params["subfuns"] = (tracers.wrapped(value, fun), tracers.wrapped(jvp, rule))
        operands = [self.get(atom, env) for atom in step.operands]
        return bind(step.eqn.primitive, operands, params)

    def custom_vjp(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a custom VJP function; values pass in the dtypes that were traced."""
        (body,) = step.bodies
        params = equations.bind_params(step.eqn)
        fun, forward, backward = params.pop("subfuns")
        outer = self.constants(env)
        count = len(step.results)  # the last outputs of the forward rule
        exact = [index - count for index in self._exact(step)]

        def value(*entered: Any) -> list[Any]:
            return self.leaving(step, self.inside(body, outer, entered))

        params["subfuns"] = (
            tracers.wrapped(value, fun),
            tracers.wrapped(self._partially(forward.call_wrapped, exact), forward),
            tracers.wrapped(self._partially(backward.call_wrapped), backward),
        )
        return bind(step.eqn.primitive, self.entering(body, env), params)

    def _exact(self, step: Step) -> list[int]:
        """Return the positions of the results that make exact arguments."""
        return [i for i, name in enumerate(step.results) if self.makes_exact(name)]

    def _partially(
        self, rule: Rule, exact: Sequence[int] = (), primals: int | None = None
    ) -> Rule:
        """Return ``rule`` converted; arguments other than arrays pass unchanged.

        Args:
            rule: The rule.
            exact: Positions of its outputs that make exact arguments, perhaps from the
                end.
            primals: Number of operands that are primals, if those after them are
                tangents.
        """

        def run(*operands: Any) -> list[Any]:
            flags = [is_array(x) for x in operands]
            parts: list[Any] = []
            structure: list[Any] = []
            places: list[int] = []  # of arrays that make exact arguments

            def of_arrays(*arrays: Any) -> list[Any]:
                supply = iter(arrays)
                pairs = zip(operands, flags, strict=True)
                out, structure[:] = _flat(
                    rule(*(next(supply) if flag else x for x, flag in pairs))
                )
                parts[:] = [ARRAY if is_array(x) else x for x in out]
                arrays_before = list(accumulate(map(is_array, out), initial=0))
                named = (range(len(out))[index] for index in exact)
                places[:] = [arrays_before[i] for i in named if is_array(out[i])]
                return [x for x in out if is_array(x)]

            arrays = [x for x, flag in zip(operands, flags, strict=True) if flag]
            before = len(arrays) if primals is None else sum(flags[:primals])
            tangents = range(before, len(arrays))
            results = iter(self.converted(of_arrays, arrays, tangents, places))
            filled = [next(results) if x is ARRAY else x for x in parts]
            return tree_util.tree_unflatten(structure[0], filled)

        return run


CONTROL = {
    **dict.fromkeys(SHARED, "checkpoint"),
    **dict.fromkeys(JITS, "jit"),
    "cond": "cond",
    "custom_jvp_call": "custom_jvp",
    "custom_vjp_call": "custom_vjp",
    "scan": "scan",
    "shard_map": "shard_map",
    "while": "while_loop",
}
"""Names of the methods that run steps with bodies, by primitive."""


def is_array(value: object) -> bool:
    """Return whether ``value`` can be traced; tangents of integers cannot."""
    arrays = (jax.Array, np.ndarray, np.generic)
    return isinstance(value, arrays) and dtype_name(value) != "float0"


def _chosen(flags: Any, new: Any, old: Any) -> Any:
    """Return ``new`` in the rows of a batched loop that continue, else ``old``."""
    missing = jnp.ndim(new) - jnp.ndim(flags)
    return jnp.where(jnp.reshape(flags, jnp.shape(flags) + (1,) * missing), new, old)


def _as(value: Any, dtype: str) -> Any:
    """Return a primal or tangent in ``dtype``, also a symbolic zero."""
    if isinstance(value, SymbolicZero):
        aval: Any = value.aval
        if is_float(dtype) and dtype_name(aval) != dtype:
            return SymbolicZero(aval.update(dtype=np.dtype(jnp.dtype(dtype))))
        return value
    if not is_float(dtype) or not is_array(value) or dtype_name(value) == dtype:
        return value
    return convert(lax.real(value) if value.dtype.kind == "c" else value, dtype)


def _flat(result: Any) -> tuple[list[Any], list[Any]]:
    """Return the result of a rule as one list, and its structure.

    It is a sequence, and since jax 0.11 a pair of one and a log for backward rules.
    Anything else, None also, is a part.
    """

    def is_part(value: object) -> bool:
        return not isinstance(value, (list, tuple, dict))

    parts, structure = tree_util.tree_flatten(result, is_leaf=is_part)
    return parts, [structure]

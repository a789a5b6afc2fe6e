"""The planned functions of one converted model, by class of module and method.

A method is captured at its first call for each signature, as a call of the model is. A
method that cannot be a program (it branches on values, or returns other data than
arrays) runs as written, on the converted model: the methods that it calls run by plans.
"""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amprewrite.errors import (
    AmpError,
    CaptureError,
    NotCapturedError,
    UnsupportedError,
    warn,
)
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.capture.promotion_tracing import tracing
from amprewrite.frameworks.jaxpr.capture.trace import is_array
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    Shared,
    alters,
)
from amprewrite.frameworks.jaxpr.modules.methods import CALL
from amprewrite.plan import Cast, Plan
from amprewrite.plan.join import join_plans

tree: Any = tree_util
"""Untyped view of ``jax.tree_util``: JAX's types are partial."""

PLAIN = (bool, int, float, complex, str, bytes, np.dtype, type, enum.Enum)
"""Types that a program may return beside arrays: data that holds no arrays."""

Make = Callable[[Any, str, Shared], ConvertedFunction]
"""Function that makes the converted function of a method, given class and name."""


class RunsAsWrittenError(Exception):
    """A method is no program; the message has the reason.

    Attributes:
        is_known: Whether no warning is needed: no op of it escapes the plan.
    """

    def __init__(self, message: str, *, is_known: bool) -> None:
        """Store the message, and whether a warning is needed."""
        self.is_known = is_known
        super().__init__(message)


class Conversion:
    """The converted functions of the modules in one model.

    Attributes:
        kind: Class of the model.
        shared: State shared by the functions.
        functions: By class of module and name of method.
        written: The methods that run as written.
    """

    def __init__(self, kind: Any, request: Request, make: Make) -> None:
        """Store the request and the maker of functions; none is made yet."""
        self.kind, self.make, self.shared = kind, make, Shared(request)
        self.functions: dict[tuple[Any, str], ConvertedFunction] = {}
        self.written: set[tuple[Any, str]] = set()

    def __deepcopy__(self, _: Any) -> "Conversion":
        """Return ``self``: copies of a model share its converted functions."""
        return self

    def converted(self, model: Any) -> Any:
        """Return ``model`` with all modules in it run by this conversion."""
        raise NotImplementedError(model)

    def to_pickle(self) -> Request:
        """Return the request that converts a pickled model again."""
        plans = self.plans
        return self.shared.request.to_pickle(plans[0] if plans else None)

    def function(self, kind: Any, name: str) -> ConvertedFunction:
        """Return the converted function of method ``name`` of class ``kind``."""
        key = kind, name
        if key not in self.functions:
            made = self.make(kind, name, self.shared)
            made.is_quiet = not self.is_main(kind, name)
            self.functions.setdefault(key, made)
        return self.functions[key]

    def is_main(self, kind: Any, name: str) -> bool:
        """Return whether a method is the call of the model, which must be a program."""
        return name == CALL and kind is self.kind

    def run(
        self,
        method: tuple[Any, str],
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        written: Callable[[], Any],
    ) -> tuple[bool, Any]:
        """Run a method by its plan, or as written if it is no program.

        Args:
            method: Class of the module, and name of the method.
            call: Arguments of the converted function.
            written: Runs the method as written.

        Returns:
            Whether it ran by a plan, and the result: of the function, or of
            ``written``.

        Raises:
            CaptureError: It is the call of the model, and cannot be traced.
        """
        args, kwargs = call
        function = self.function(*method)
        if self.is_main(*method):
            return True, function(*args, **kwargs)
        has_arrays = any(map(is_array, tree.tree_leaves((args, dict(kwargs)))))
        if method in self.written or not has_arrays:
            return False, self._as_written(written)
        try:
            function.tracer.trace(args, kwargs)
        except (CaptureError, UnsupportedError, RunsAsWrittenError) as error:
            return False, self._noted(method, error, written)
        except AmpError:
            raise
        except Exception as error:  # noqa: BLE001  # of the method: raised again as written, or its way to say that it cannot be traced
            return False, self._noted(method, error, written)
        prepared, result, arrays = function.prepare(args, kwargs)
        if not alters(prepared.plan):
            return False, self._as_written(written)
        return True, result.arguments(prepared.run(arrays))

    def _as_written(self, written: Callable[[], Any]) -> Any:
        with tracing(self.shared.request.processor):
            return written()

    def _noted(
        self, method: tuple[Any, str], error: Exception, written: Callable[[], Any]
    ) -> Any:
        """Run a method as written, and warn about it once."""
        result = self._as_written(written)
        self.written.add(method)
        if not (isinstance(error, RunsAsWrittenError) and error.is_known):
            kind, name = method
            reason = str(error).split("\n", maxsplit=1)[0]
            msg = (
                f"{kind.__name__}.{name} is not run by a plan: {reason} It runs as it "
                f"is written, its own ops in full precision; modules and methods that "
                f"it calls run by their plans. To have all of it converted, let it "
                f"take and give arrays, and decide by them with jax.lax"
            )
            warn(msg)
        return result

    @property
    def plans(self) -> list[Plan]:
        """The plans of all methods and signatures, in the order of their capture."""
        return [p for function in self.functions.values() for p in function.plans]

    @property
    def plan(self) -> Plan:
        """The plan of all methods and signatures, joined.

        Programs of methods that no plan changes are left out if there are others.

        Raises:
            NotCapturedError: Nothing was called yet.
        """
        main = [f for key, f in self.functions.items() if self.is_main(*key)]
        of_main = [plan for function in main for plan in function.plans]
        others = [p for p in self.plans if p not in of_main and alters(p)]
        found = [*of_main, *others] or self.plans
        if not found:
            msg = (
                f"the {self.kind.__name__} has no plan yet, because it is traced at "
                f"its first call; call it, or convert it with args=(...)"
            )
            raise NotCapturedError(msg)
        return join_plans(found)

    @property
    def casts(self) -> tuple[Cast, ...]:
        """The casts of :attr:`plan`."""
        return self.plan.casts


def without_methods(kind: Any) -> UnsupportedError:
    """Return the error for a model without methods, which computes nothing."""
    msg = f"{kind.__name__} has no method that could run by a plan; want a model"
    return UnsupportedError(msg)


def check_is_called(kind: Any) -> None:
    """Check that a model can be called, as the arguments of ``args=`` require.

    Raises:
        UnsupportedError: Its class has no ``__call__``.
    """
    if not any(CALL in vars(base) for base in kind.__mro__):
        msg = (
            f"args= are those of a call, and {kind.__name__} has no __call__; "
            f"leave them out: each method is captured at its first call"
        )
        raise UnsupportedError(msg)


def check_is_data(made: Any, *modules: type) -> None:
    """Check that a method returned arrays, plain data, or modules.

    Args:
        made: Its result.
        *modules: Classes of modules that are rebuilt from their arrays.

    Raises:
        RunsAsWrittenError: It returned something else, such as a function.
    """
    for leaf in tree.tree_leaves(made, is_leaf=lambda x: adapter_of(x) is not None):
        if is_array(leaf) or isinstance(leaf, (*PLAIN, *modules)):
            continue
        msg = f"it gives back a {type(leaf).__name__}."
        raise RunsAsWrittenError(msg, is_known=not inspect.isroutine(leaf))

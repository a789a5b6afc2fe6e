"""The planned functions of one converted model, by class of module and method.

A method is captured at its first call for each signature, as a call of the model is. A
method that cannot be a program (it branches on values, or returns other data than
arrays) runs as written, on the converted model: the methods that it calls run by plans.
"""


# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import copy
import enum
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
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
from amprewrite.frameworks.jaxpr.capture.promotion import tracing
from amprewrite.frameworks.jaxpr.capture.trace import is_array
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util as tree
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    Shared,
    alters,
    parameter_names,
)
from amprewrite.plan import Cast, Plan
from amprewrite.plan.join import join_plans

# Classes of converted modules, derived from the model's class.
#
# Fields, other methods and type checks work as before; only calls differ.

# A module may hold anything: its type is unknown to a type checker.


RUNNER = "amprewrite_runner"
"""Field of a converted module with its conversion."""


PLAIN_CLASS = "amprewrite_plain"
"""The attribute of a derived class that holds the class of the model."""


def made_of(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return an instance of ``kind`` with ``fields``, without calling its ``__init__``.

    The field of the conversion is left out if ``kind`` is no converted class.
    """
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        if name != RUNNER or PLAIN_CLASS in vars(kind):
            object.__setattr__(made, name, value)
    return made


def plain_class(kind: Any) -> Any:
    """Return the model's class of a converted class; other classes as they are.

    A user's class derived from a converted model's class counts as converted.
    """
    return getattr(kind, PLAIN_CLASS, kind)


@functools.cache
def metaclass(meta: Any) -> Any:
    """Return the metaclass of converted modules, for models with metaclass ``meta``.

    Converted classes have the models' names, so that modules print alike; the text of
    the class itself differs, for JAX's errors about trees with both of them.
    """

    def shown(kind: Any) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        return f"<class {name!r} converted by amprewrite; see amprewrite.original>"

    return type(meta.__name__, (meta,), {"__repr__": shown})


def class_body(
    kind: Any, converted_function_of: Callable[[Any], Any], fields: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the body of the class of converted modules of class ``kind``.

    Args:
        kind: Class of the model.
        converted_function_of: Returns the runner of a module, with ``plan`` and
            ``casts``.
        fields: Names that the model uses itself.
    """
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__annotations__": {},
        PLAIN_CLASS: kind,
    }
    taken = set(fields)
    for name in ("plan", "casts"):
        if not hasattr(kind, name) and name not in taken:
            body[name] = property(
                functools.partial(_of_converted_function, converted_function_of, name)
            )
    return body


def copies(convert: Any, conversion_of: Any, original: Any) -> dict[str, Any]:
    """Return the part of a class body that copies and pickles converted modules.

    A class made during conversion has no importable name for pickle.

    Args:
        convert: Importable function that converts a model by a request.
        conversion_of: Returns the conversion of a converted module.
        original: Returns the plain module.
    """

    def reduce_to(self: Any) -> Any:
        conversion = conversion_of(self)
        if conversion is None:  # made by a class method
            return made_of, (plain_class(type(self)), dict(vars(self)))
        return convert, (original(self), conversion.to_pickle())

    def deep(self: Any, memo: dict[int, Any]) -> Any:
        conversion = conversion_of(self)
        copied = copy.deepcopy(original(self), memo)
        return copied if conversion is None else conversion.converted(copied)

    def shallow(self: Any) -> Any:
        return made_of(type(self), vars(self))

    return {"__reduce__": reduce_to, "__deepcopy__": deep, "__copy__": shallow}


def _of_converted_function(
    converted_function_of: Callable[[Any], Any], name: str, model: Any
) -> Any:
    return getattr(converted_function_of(model), name)


# The methods of a model's class that run by a plan, and overrides for them.
#
# Every method and property that the class and its bases define runs by a plan, private
# ones too: inherited code calls them from outside. Static and class methods have no
# model; generators and coroutines run in steps. Those run as written, and the methods
# that they call on the model run by a plan.

CALL = "__call__"
"""Name of the method behind a call of the model itself."""

Run = Callable[[Any, str, tuple[Any, ...], Mapping[str, Any]], Any]
"""Function that runs a method: of the model, method name and arguments."""


def overrides(
    kind: Any, base: type, run: Run, fields: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the part of a class body in which methods of ``kind`` call ``run``.

    Args:
        kind: Class of the model.
        base: Base class of the library's modules; its own methods are kept.
        run: Runs a method; a property without arguments.
        fields: Names of the fields of the model, which are no methods.
    """
    known = set(fields)
    return {
        name: _property(name, found, run) if is_property else _method(name, found, run)
        for name, (found, is_property) in methods_of(kind, base).items()
        if name not in known
    }


def methods_of(kind: Any, base: type) -> dict[str, tuple[Any, bool]]:
    """Return the methods that run by a plan, and whether each is a property.

    Args:
        kind: Class of the model.
        base: Class of all modules of the library.
    """
    bases: tuple[type, ...] = kind.__mro__
    merged: dict[str, Any] = {}
    for owner in reversed(bases):
        if owner not in base.__mro__:
            merged.update(vars(owner))
    return {
        name: (value, isinstance(value, property))
        for name, value in merged.items()
        if _has_a_name_of_its_own(name) and _runs_on_a_model(value)
    }


def call_method(
    model: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the result of method or property ``name`` of ``model``."""
    if name == CALL:
        return model(*args, **kwargs)
    found = getattr(model, name)
    return found if _is_property(type(model), name) else found(*args, **kwargs)


def as_written(
    kind: Any, model: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the result of ``name`` as class ``kind`` defines it, on ``model``.

    Args:
        kind: Class of the model.
        model: An instance of a derived class, with an override that is bypassed.
        name: Name of the method.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    found: Any = inspect.getattr_static(kind, name)
    bound = found.__get__(model, type(model))
    return bound if isinstance(found, property) else bound(*args, **kwargs)


def method_parameters(kind: Any, name: str) -> tuple[str, ...]:
    """Return the names of the positional parameters of a method."""
    found: Any = inspect.getattr_static(kind, name, None)
    return () if isinstance(found, property) else parameter_names(found)[1:]


def _is_property(kind: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name), property)


def _has_a_name_of_its_own(name: str) -> bool:
    """Return whether Python never calls ``name`` implicitly."""
    return name == CALL or not (name.startswith("__") and name.endswith("__"))


def _runs_on_a_model(value: Any) -> bool:
    if isinstance(value, property | functools.partialmethod):
        return True
    if isinstance(value, type | staticmethod | classmethod) or not callable(value):
        return False
    inner: Any = inspect.unwrap(value)
    turns = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    return hasattr(type(value), "__get__") and not any(test(inner) for test in turns)


def _method(name: str, found: Any, run: Run) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run(self, name, args, kwargs)

    inner = found.func if isinstance(found, functools.partialmethod) else found
    functools.update_wrapper(method, inner, updated=())
    return method


def _property(name: str, found: property, run: Run) -> property:
    def getter(self: Any) -> Any:
        return run(self, name, (), {})

    return property(getter, found.fset, found.fdel, found.__doc__)


# A module may hold anything: its type is unknown to a type checker.


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

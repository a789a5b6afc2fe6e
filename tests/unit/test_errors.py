"""Every error is an AmpError and the builtin that a caller expects."""

import pickle
from typing import Any

import pytest

from amprewrite import errors

BUILTINS = {
    "AmpError": Exception,
    "ArgumentError": TypeError,
    "CaptureError": RuntimeError,
    "ComplexTruncationError": TypeError,
    "GraphError": ValueError,
    "LossScaleError": FloatingPointError,
    "NotCapturedError": RuntimeError,
    "OptimizerError": ValueError,
    "PlanMismatchError": ValueError,
    "OpTableError": ValueError,
    "PolicyError": ValueError,
    "PromotionError": TypeError,
    "TargetError": ValueError,
    "ToleranceError": ValueError,
    "UnitScalingError": ValueError,
    "UnsupportedError": NotImplementedError,
    "VerifyError": AssertionError,
}


def test_the_table_has_every_error() -> None:
    found = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.AmpError)
        if not name.startswith("_")
    }
    assert found == set(BUILTINS)


@pytest.mark.parametrize("name", BUILTINS)
def test_each_is_caught_as_the_builtin(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.AmpError)
    with pytest.raises(BUILTINS[name], match="what happened"):
        raise kind("what happened")


@pytest.mark.parametrize("name", BUILTINS)
def test_each_has_a_docstring_of_its_own(name: str) -> None:
    assert vars(getattr(errors, name))["__doc__"]


def test_a_policy_error_has_one_line_for_each_mistake() -> None:
    error = errors.PolicyError("policy mine: 2 mistakes", ["a: wrong", "b: wrong"])
    assert str(error) == "policy mine: 2 mistakes\n  a: wrong\n  b: wrong"
    assert error.mistakes == ("a: wrong", "b: wrong")


def test_a_policy_error_without_mistakes_is_its_message() -> None:
    error = errors.PolicyError("unknown policy")
    assert (str(error), error.mistakes) == ("unknown policy", ())


def test_a_tolerance_error_has_what_was_reached() -> None:
    error = errors.ToleranceError("no plan", 3e-3, ["linear"])
    assert (str(error), error.best, error.ops) == ("no plan", 3e-3, ("linear",))
    assert errors.ToleranceError("no bound").best is None


def test_a_loss_scale_error_has_the_parameter() -> None:
    error = errors.LossScaleError("the gradient of w is not finite", "w")
    assert (str(error), error.parameter) == ("the gradient of w is not finite", "w")
    assert not errors.LossScaleError("gradients are not finite").parameter


def test_errors_survive_a_trip_between_processes() -> None:
    """A test runner or a data loader hands them over pickled."""
    again = pickle.loads(pickle.dumps(errors.CaptureError("where: what")))
    assert str(again) == "where: what"


def test_a_warning_points_to_the_line_of_the_user() -> None:
    """Past the lines of this package and of the frameworks that call it."""
    between = {"warn": errors.warn, "__file__": errors.__file__}
    text = compile("def announce(): warn('what happened')", errors.__file__, "exec")
    exec(text, between)
    exec("def generated(): announce()", between)  # as the __init__ of a dataclass is
    generated: Any = between["generated"]
    with pytest.warns(errors.AmpWarning, match="what happened") as caught:
        generated()
    assert caught[0].filename == __file__
    line = test_a_warning_points_to_the_line_of_the_user.__code__.co_firstlineno + 8
    assert caught[0].lineno == line


def test_a_module_named_as_one_of_this_package_is_the_users() -> None:
    """As pytest names the files of a clone in a folder ``amprewrite``."""
    mine = {"__name__": "amprewrite.tests.test_mine", "warn": errors.warn}
    with pytest.warns(errors.AmpWarning) as caught:
        exec(compile("warn('here')", "/x/amprewrite/tests/test_mine.py", "exec"), mine)
    assert caught[0].filename == "/x/amprewrite/tests/test_mine.py"


def test_the_warning_is_a_users_warning() -> None:
    assert issubclass(errors.AmpWarning, UserWarning)

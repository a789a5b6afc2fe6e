from collections import namedtuple
from types import MappingProxyType
from typing import Any

import pytest

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.base import (
    check_arguments,
    check_overrides,
)
from amprewrite.policy import OpClass, Rule

Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024  # any tuple will do


@pytest.mark.parametrize("args", [None, (), (1,), Pair(1, 2)])
def test_a_tuple_of_arguments_passes(args: Any) -> None:
    check_arguments(args, None)


@pytest.mark.parametrize("kwargs", [None, {}, {"x": 1}, MappingProxyType({"x": 1})])
def test_a_mapping_of_keyword_arguments_passes(kwargs: Any) -> None:
    check_arguments(None, kwargs)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (3.0, "args is a float; want a tuple of the positional call arguments: args="),
        ([3.0], "args is a list; want a tuple of the positional call arguments: args="),
        ({"x": 3.0}, "args is a dict; want a tuple .*; keyword arguments go to kwargs"),
    ],
)
def test_what_is_no_tuple_is_told_what_to_write(args: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check_arguments(args, None)


@pytest.mark.parametrize("kwargs", [(3.0,), [("x", 3.0)], "x"])
def test_what_is_no_mapping_is_told_what_to_write(kwargs: Any) -> None:
    with pytest.raises(ArgumentError, match=r"kwargs is a \w+; want a dict"):
        check_arguments((), kwargs)


@pytest.mark.parametrize("rules", [[], (), [{"op": "exp", "class": "deny"}]])
def test_a_list_of_rules_passes(rules: Any) -> None:
    check_overrides(rules)


@pytest.mark.parametrize(
    "rules",
    [{"op": "exp", "class": "deny"}, "op=exp", Rule(op_class=OpClass.DENY), None],
)
def test_one_rule_is_told_to_be_a_list(rules: Any) -> None:
    with pytest.raises(ArgumentError, match=r"want a list of rules: overrides=\["):
        check_overrides(rules)

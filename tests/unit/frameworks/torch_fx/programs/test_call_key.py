"""Keys of call arguments: equal for calls that the same program runs."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.programs.calls import call_key

X = torch.ones(2, 3)
Pair = namedtuple("Pair", "a b")  # noqa: PYI024  # the kind that users have


@dataclass
class Output:
    """A dataclass that is a pytree."""

    x: Tensor
    scale: float


torch.export.register_dataclass(Output)


def key(*args: Any, **kwargs: Any) -> Any:
    found = call_key(args, kwargs)
    hash(found)
    return found


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (X, torch.zeros(2, 3)),
        (X, X.t().contiguous().t()),
        (X, torch.nn.Parameter(X)),
        ([X, 1], [X * 2, 1]),
        ({"a": X, "b": (1, None)}, {"a": -X, "b": (1, None)}),
        (Output(X, 2.0), Output(X * 2, 2.0)),
        (Pair(X, 1), Pair(-X, 1)),
        (OrderedDict(a=X), OrderedDict(a=-X)),
        ("word", str(b"word", "ascii")),
    ],
)
def test_values_of_tensors_do_not_count(one: Any, two: Any) -> None:
    assert key(one) == key(two)
    assert hash(key(one)) == hash(key(two))
    assert key(x=one) == key(x=two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (X, torch.ones(3, 2)),
        (X, X.double()),
        (X, X.to("meta")),
        (X, 1),
        (torch.tensor(1), 1),
        (1, 2),
        (1, True),
        (1, 1.0),
        (0, False),
        (0, None),
        (1.0, 1 + 0j),
        ("a", b"a"),
        (torch.float32, torch.float16),
        ([X], (X,)),
        ([X], [X, X]),
        ([[X], X], [[X, X]]),
        ([1], [True]),
        ([], ()),
        ({}, []),
        ({"a": X}, {"b": X}),
        ({"a": X, "b": 1}, {"b": 1, "a": X}),
        ({"a": {"b": 1}}, {"a": {"b": 2}}),
        ({"a": {"b": 1}}, {"a": {"c": 1}}),
        ({"a": X}, OrderedDict(a=X)),
        (Output(X, 2.0), Output(X, 3.0)),
        (Output(X, 1), Output(X, True)),
        (Output(X, 2.0), Output(X[0], 2.0)),
        (Pair(X, 1), (X, 1)),
        (Pair(X, 1), Pair(1, X)),
    ],
)
def test_everything_else_counts(one: Any, two: Any) -> None:
    assert key(one) != key(two)
    assert key(x=one) != key(x=two)


def test_where_and_by_which_name_an_argument_is_given_counts() -> None:
    assert key(X, 1) != key(1, X)
    assert key(X) != key(x=X)
    assert key(x=X) != key(y=X)
    assert key(X, None) != key(X)
    assert key(x=X, y=1) != key(x=1, y=X)
    assert call_key((X,), {}) == (key(X)[0],)


def test_an_object_that_is_no_pytree_counts_by_its_type() -> None:
    """Export refuses such an argument, and dynamo looks at it at each call."""
    assert key(object()) == key(object())
    assert key([object()]) == key([object()])
    assert key(object()) != key(torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("at_once", [False, True])
def test_a_nested_tensor_without_a_shape_is_refused(*, at_once: bool) -> None:
    nested = torch.nested.nested_tensor([X, X[:1]])
    with pytest.raises(
        UnsupportedError, match=r"nested tensor .* want one of .*jagged"
    ):
        amprewrite.convert(nn.Linear(3, 3), args=(nested,) if at_once else None)(nested)

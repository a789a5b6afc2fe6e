"""Outputs of a converted torch module have the classes that the model gives."""

import copy
import pickle
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite

Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024  # untyped, as users have it


@dataclass
class Plain:
    a: Any
    b: Any


@dataclass
class Registered:
    a: Any
    b: Any


torch.export.register_dataclass(Registered)


class Table(dict[str, Any]):
    """A dict of the user's own."""


class Row(list[Any]):
    """A list of the user's own."""


def of_transformers(y: Tensor) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutput(last_hidden_state=y, hidden_states=(y, y + 1))


class Model(nn.Module):
    """A layer, and its output in some container."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


def described(output: Any) -> Any:
    """The classes of an output and of all its parts, with the values of what is known.

    Tensors are described by their class: what they hold is not exact.
    """
    kind = type(output)
    if isinstance(output, Tensor):
        return Tensor, tuple(output.shape), output.dtype
    if isinstance(output, dict):
        parts: Any = [(key, described(value)) for key, value in output.items()]
        return kind, parts, getattr(output, "default_factory", None)
    if is_dataclass(output):
        return kind, [described(getattr(output, f.name)) for f in fields(output)]
    if isinstance(output, (list, tuple, deque)):
        return kind, [described(part) for part in output], getattr(output, "maxlen", 0)
    return kind, repr(output)


WRAPS: dict[str, Any] = {
    "namedtuple": lambda y: Pair(y, y + 1),
    "registered dataclass": lambda y: Registered(y, y + 1),
    "plain dataclass": lambda y: Plain(y, y + 1),
    "OrderedDict": lambda y: OrderedDict(b=y, a=y + 1),
    "defaultdict": lambda y: defaultdict(list, b=y),
    "dict": lambda y: {"z": y, "a": y + 1},
    "subclass of dict": lambda y: Table(a=y),
    "subclass of list": lambda y: Row([y]),
    "Counter": lambda y: (y, Counter("aba")),
    "deque": lambda y: deque([y, y + 1], maxlen=3),
    "ModelOutput": of_transformers,
    "Size": lambda y: y.shape,
    "Size beside a tensor": lambda y: {"y": y, "parts": [y.shape, y.shape[1:]]},
    "max": lambda y: torch.max(y, 1),
    "sort": lambda y: {"k": torch.sort(y)},
    "topk": lambda y: [y.topk(2)],
    "slogdet": lambda y: torch.linalg.slogdet(y[:3, :3]),
    "None": lambda _: None,
    "None beside a tensor": lambda y: (y, None),
    "numbers": lambda y: (y, 3, 2.5, True, y.numel(), y.size(0)),
    "complex number": lambda y: (y, 1j),
    "string": lambda y: (y, "mean"),
    "dtype and device": lambda y: (y, y.dtype, y.device),
    "empty": lambda y: ((), [], {}, y),
    "nested": lambda y: {"a": [(y, {"b": Pair(y, [None, 1])})], "z": y},
}


@pytest.mark.parametrize("given", [True, False], ids=["args", "lazy"])
@pytest.mark.parametrize("name", WRAPS)
def test_an_output_keeps_its_classes(name: str, given: bool) -> None:  # noqa: FBT001  # a case
    model, x = Model(WRAPS[name]).eval(), torch.randn(3, 4)
    converted = amprewrite.convert(model, args=(x,) if given else None)
    assert described(converted(x)) == described(model(x))


class Sized(nn.Module):
    """Gives the extents of its output beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        return y, y.shape


def test_sizes_of_dynamic_extents_are_those_of_the_call() -> None:
    rows = torch.export.Dim("rows")
    converted = amprewrite.convert(
        Sized().eval(), args=(torch.randn(3, 4),), dynamic_shapes=({0: rows},)
    )
    found = converted(torch.randn(5, 4))[1]
    assert type(found) is torch.Size
    assert found == (5, 4)


def test_sizes_survive_copies_a_pickle_and_a_second_capture() -> None:
    x = torch.randn(3, 4)
    converted = amprewrite.convert(Sized().eval(), args=(x,))
    loaded = pickle.loads(pickle.dumps(converted))
    for module in (copy.deepcopy(converted), loaded):
        assert type(module(x)[1]) is torch.Size
    exported = torch.export.export(converted, (x,)).module()
    assert exported(x)[1] == (3, 4)
    compiled: Any = torch.compile(converted, backend="eager")
    assert type(compiled(x)[1]) is torch.Size

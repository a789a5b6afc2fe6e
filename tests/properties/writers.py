"""Random models whose forwards write: to parameters, buffers, attributes, objects."""

# ruff: noqa: ARG001  # all writers have the same arguments
import random
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

WIDTH = 4
"""Features of all values."""


def _refuse(self: Any, *_: Any) -> Any:
    raise NotImplementedError(type(self).__name__)


HOSTILE = ("__len__", "__eq__", "__repr__", "__bool__", "__iter__", "__getitem__")
"""Methods that raise in objects of the user."""

_RAISING: dict[str, Any] = dict.fromkeys((*HOSTILE, "__contains__"), _refuse)

Stranger = type("Stranger", (), {**_RAISING, "__hash__": _refuse})
StrangeTuple = type("StrangeTuple", (tuple,), _RAISING)
StrangeList = type("StrangeList", (list,), {**_RAISING, "__hash__": _refuse})
StrangeDict = type("StrangeDict", (dict,), {**_RAISING, "__hash__": _refuse})


class Asked:
    """Object that has no other attributes, and says so by another error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # as copy and pickle ask for
            raise AttributeError(name)
        raise NotImplementedError(name)


def strangers(draw: Random) -> Any:
    """Return an object that hardly anything can be done with."""
    make: Callable[[], Any] = draw.choice(
        [
            Stranger,
            Asked,
            lambda: StrangeTuple((1, 2)),
            lambda: StrangeList([1, 2]),
            lambda: StrangeDict(a=1),
            lambda: [Stranger()],
            lambda: {"a": (Stranger(), StrangeTuple())},
        ]
    )
    return make()


class Box:
    """An object with a number and a tensor."""

    def __init__(self) -> None:
        self.count, self.total = 0, torch.ones(WIDTH)


class Slots:
    """An object without a dict."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Writer(nn.Module):
    """Module with parameters, buffers and attributes of all kinds.

    Attributes:
        late: Whether it writes after the input was used.
    """

    write: Callable[..., Any]
    """Function of the module and its input that writes, and returns a factor."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        self.late = draw.random() < 0.5
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.kept = nn.Parameter(torch.rand(WIDTH) + 0.5, requires_grad=False)
        self.mean: Any
        self.absent: Any
        self.register_buffer("absent", None)
        self.register_buffer("mean", torch.rand(WIDTH) + 0.5)
        self.plain = torch.rand(WIDTH) + 0.5
        self.count, self.ratio = 0, 1.0
        self.list, self.dict, self.deque = [1.0], {"a": 1.0}, deque([1.0], maxlen=3)
        self.set, self.nested = {0}, {"a": [1.0]}
        self.box, self.slots, self.array = Box(), Slots(), np.ones(WIDTH)
        self.teacher = [nn.Linear(WIDTH, WIDTH)]
        if draw.random() < 0.5:
            self.stranger = strangers(draw)

    def forward(self, x: Any) -> Any:
        if self.late:
            y = self.layer(x)
            return torch.tanh(y) * self.write(x)
        factor = self.write(x)
        return torch.tanh(self.layer(x)) * factor


def parameter_by_data(m: Any, x: Any) -> Any:
    m.kept.data.mul_(1.25)
    return m.kept.detach().clone()


def parameter_data_set(m: Any, x: Any) -> Any:
    m.kept.data = m.kept.data * 0.5 + m.layer.weight.data[0] * 0.5
    return 1.0


def momentum(m: Any, x: Any) -> Any:
    teacher = m.teacher[0]
    for p, q in zip(teacher.parameters(), m.layer.parameters(), strict=True):
        p.data = p.data * 0.5 + q.data * 0.5
    return torch.sigmoid(teacher(x).detach())


def momentum_in_place(m: Any, x: Any) -> Any:
    with torch.no_grad():
        for p, q in zip(m.teacher[0].parameters(), m.layer.parameters(), strict=True):
            p.mul_(0.5).add_(q, alpha=0.5)
        return torch.sigmoid(m.teacher[0](x))


def parameter_in_place(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.kept.add_(0.125)
    return m.kept.detach().clone()


def parameter_copied(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.kept.copy_(m.kept * 0.5 + x.mean(0) * 0.5)
    return m.kept.detach().clone()


def parameter_element(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.kept[0] = m.kept[0] * 1.5
    return m.kept.detach().clone()


def trained_clamped(m: Any, x: Any) -> Any:
    m.layer.bias.data.clamp_(-0.25, 0.25)
    return 1.0


def buffer_in_place(m: Any, x: Any) -> Any:
    m.mean.mul_(0.5).add_(x.detach().mean(0))
    return m.mean.clone()


def buffer_set(m: Any, x: Any) -> Any:
    m.mean = m.mean * 0.5 + x.detach().mean(0)
    return m.mean


def buffer_registered(m: Any, x: Any) -> Any:
    m.register_buffer("mean", m.mean * 0.5 + x.detach().mean(0))
    return m.mean


def buffer_from_none(m: Any, x: Any) -> Any:
    m.absent = x.detach().mean(0) + (0.0 if m.absent is None else m.absent)
    return m.absent


def buffer_by_data(m: Any, x: Any) -> Any:
    m.mean.data.mul_(0.5)
    return m.mean.clone()


def plain_in_place(m: Any, x: Any) -> Any:
    m.plain.mul_(1.25)
    return m.plain.clone()


def plain_set(m: Any, x: Any) -> Any:
    m.plain = m.plain * 1.25
    return m.plain


def counter(m: Any, x: Any) -> Any:
    m.count += 1
    return float(m.count)


def ratio(m: Any, x: Any) -> Any:
    m.ratio = m.ratio * 0.5
    return m.ratio


def list_grows(m: Any, x: Any) -> Any:
    m.list.append(len(m.list))
    return float(len(m.list))


def dict_written(m: Any, x: Any) -> Any:
    m.dict["a"] = m.dict["a"] + 1
    return m.dict["a"]


def dict_of_tensors(m: Any, x: Any) -> Any:
    m.dict["t"] = x.detach().mean(0) + m.dict.get("t", 0.0)
    return m.dict["t"]


def deque_grows(m: Any, x: Any) -> Any:
    m.deque.append(m.deque[-1] + 1)
    return m.deque[-1]


def nested_grows(m: Any, x: Any) -> Any:
    m.nested["a"].append(2.0)
    return sum(m.nested["a"])


def object_counts(m: Any, x: Any) -> Any:
    m.box.count += 1
    return float(m.box.count)


def object_tensor(m: Any, x: Any) -> Any:
    m.box.total.mul_(1.25)
    return m.box.total.clone()


def object_tensor_set(m: Any, x: Any) -> Any:
    m.box.total = m.box.total * 1.25
    return m.box.total


def slots_count(m: Any, x: Any) -> Any:
    m.slots.count += 1
    return float(m.slots.count)


def codebook(m: Any, x: Any) -> Any:
    """Update a codebook as a VQ-VAE does, by the mean of what is nearest to it."""
    near = torch.sigmoid(x.detach().mean(0) - m.mean)
    m.mean.data.mul_(0.75).add_(near, alpha=0.25)
    m.kept.data.mul_(0.75).add_(near * 0.5)
    return (m.kept / (m.mean + 1)).detach()


def nothing(m: Any, x: Any) -> Any:
    return 1.0


def casts(m: Any, x: Any) -> Any:
    return torch.softmax(x.float() * m.mean, -1).type_as(x)


def draws(m: Any, x: Any) -> Any:
    return torch.rand(WIDTH) + 0.5


def draws_in_python(m: Any, x: Any) -> Any:
    return random.random() + float(np.random.rand())  # noqa: NPY002  # the global state


WRITERS: dict[str, type[Writer]] = {
    write.__name__: type(write.__name__, (Writer,), {"write": write})
    for write in (
        *(parameter_by_data, parameter_data_set, momentum, momentum_in_place),
        *(parameter_in_place, parameter_copied, parameter_element, trained_clamped),
        *(buffer_in_place, buffer_set, buffer_registered, buffer_from_none),
        *(buffer_by_data, plain_in_place, plain_set),
        *(counter, ratio, list_grows, dict_written, dict_of_tensors, deque_grows),
        *(nested_grows, object_counts, object_tensor, object_tensor_set, slots_count),
        *(codebook, nothing, casts, draws, draws_in_python),
    )
}


class Half(nn.Module):
    """A parametrization."""

    def forward(self, weight: Any) -> Any:
        return weight * 0.5


def _layer(draw: Random) -> nn.Module:
    """Return a layer of torch with state, or a parametrized one."""
    layer: Any = nn.Linear(WIDTH, WIDTH)
    kind = draw.choice(["batch", "spectral", "old spectral", "weight", "own", "drop"])
    if kind == "batch":
        return nn.BatchNorm1d(WIDTH)
    if kind == "spectral":
        return parametrizations.spectral_norm(layer)
    if kind == "old spectral":
        return nn.utils.spectral_norm(layer)
    if kind == "weight":
        return parametrizations.weight_norm(layer)
    if kind == "own":
        parametrize.register_parametrization(layer, "weight", Half())
        return layer
    return nn.Dropout(0.5)


class Tree(nn.Module):
    """Parts one after the other, some under several names, with tied weights."""

    def __init__(self, parts: list[nn.Module], draw: Random) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            setattr(self, f"part{number}", part)
        self.order = [f"part{number}" for number in range(len(parts))]
        if draw.random() < 0.4:
            self.twin = parts[0]
            self.order.append("twin")
        if draw.random() < 0.2:
            self.triplet = parts[0]
        if draw.random() < 0.3:
            self.stranger = strangers(draw)
        linear = [p for p in self.modules() if type(p) is nn.Linear]
        plain = [p for p in linear if "weight" in dict(p.named_parameters())]
        if len(plain) > 1 and draw.random() < 0.3:
            plain[0].weight = plain[1].weight

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = getattr(self, name)(x)
        return x


def random_model(seed: int) -> nn.Module:
    """Return the model of a seed; equal ones for equal seeds."""
    draw = Random(seed)
    torch.manual_seed(seed)

    def tree(depth: int) -> Tree:
        parts: list[nn.Module] = []
        for _ in range(draw.randint(1, 3)):
            pick = draw.random()
            if depth and pick < 0.2:
                parts.append(tree(depth - 1))
            elif pick < 0.4:
                parts.append(_layer(draw))
            else:
                parts.append(WRITERS[draw.choice(sorted(WRITERS))](draw))
        return Tree(parts, draw)

    return tree(2)

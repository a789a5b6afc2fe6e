"""The user's model stays as it was, and writes once a call, whatever is done to it."""

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

from torch import nn

import amprewrite
from amprewrite.errors import AmpError, CaptureError
from tests.properties.model_states import differences, random_states, state_of

pytestmark = pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")


def same(model: Any, action: Callable[[], Any]) -> Any:
    """Run an action, and check that it left the model and random states alone."""
    before, numbers = state_of(model), random_states()
    try:
        return action()
    finally:
        assert differences(before, state_of(model)) == []
        assert random_states() == numbers


class Momentum(nn.Module):
    """Two encoders, one of which follows the other."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        for p, r in zip(self.k.parameters(), self.q.parameters(), strict=True):
            p.data = p.data * 0.5 + r.data * 0.5
        return self.q(x) - self.k(x)


class Codebook(nn.Module):
    """A parameter that forward reads, then updates."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.e = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Any) -> Any:
        y = self.l(x) * self.e
        self.e.data.mul_(2)
        return y


class Counted(nn.Module):
    """A parameter that is written without gradients, and a count in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.log = nn.Linear(4, 4), {"calls": [0]}

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.l.bias.mul_(0.5).add_(1)
        self.log["calls"].append(len(self.log["calls"]))
        return self.l(x) * self.log["calls"][-1]


class Fast(nn.Module):
    """A part that casts to float32 by name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("p", torch.rand(4, 4))

    def forward(self, x: Any) -> Any:
        return torch.softmax(x.float() @ self.p, -1).type_as(x)


class Twins(nn.Module):
    """One part under three names, and two parts with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Fast()
        self.twin = self.triplet = self.net
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(self.triplet(self.a(self.net(x))))


class Average(nn.Module):
    """A buffer that is set, in a part with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a: Any = nn.Linear(4, 4)
        self.a.register_buffer("mean", torch.rand(4))
        self.b = self.a

    def forward(self, x: Any) -> Any:
        for part in (self.a, self.b):
            part.mean = part.mean * 0.5 + x.detach().mean(0)
            x = torch.tanh(part(x)) * part.mean
        return x


MODELS = (Momentum, Codebook, Counted, Twins, Average)


@pytest.mark.parametrize("policy", ["off", "bf16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("way", ["args", "lazy", "backend"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_writes_once_a_call_and_not_before(
    kind: Any, way: str, policy: str, *, training: bool
) -> None:
    model, x = kind().train(training), torch.rand(2, 4)
    plain = copy.deepcopy(model)
    if way == "backend":
        torch._dynamo.reset()
        backend = "amprewrite" if policy == "bf16" else "eager"
        converted: Any = torch.compile(model, backend=backend)
    else:
        args = (x,) if way == "args" else None
        converted = same(model, lambda: amprewrite.convert(model, policy, args=args))
    for _ in range(3):
        found, expected = converted(x), plain(x)
        if policy == "off":
            assert torch.equal(found, expected)
    now = amprewrite.original(converted) if way != "backend" else model
    for name, held in plain.state_dict().items():
        torch.testing.assert_close(now.state_dict()[name], held, atol=0.02, rtol=0.02)
    if kind is Counted:
        assert now.log == plain.log


@pytest.mark.parametrize("kind", MODELS)
def test_measurements_leave_the_model_and_its_conversion_alone(kind: Any) -> None:
    model, x = kind().eval(), torch.rand(2, 4)
    args = (x,)
    converted = amprewrite.convert(model, args=args)
    before = state_of(converted, identities=False)
    same(model, lambda: amprewrite.inspect(model, args=args))
    same(model, lambda: amprewrite.verify(model, converted, args))
    same(model, lambda: amprewrite.histogram(model, args, gradients=False))
    amprewrite.histogram(converted, args, gradients=False)
    with suppress(AmpError):
        same(model, lambda: amprewrite.convert(model, args=args, tolerance=0.5))
    assert differences(before, state_of(converted, identities=False)) == []
    lazy, plain = amprewrite.convert(model, "off"), copy.deepcopy(model)
    amprewrite.histogram(lazy, args, gradients=False)  # which captures it
    for _ in range(2):
        assert torch.equal(lazy(x), plain(x))


def _refuse(*_: Any) -> Any:
    raise NotImplementedError


refuse: Any = _refuse


class Irreps(tuple[Any, ...]):
    """A tuple that refuses to say how long it is."""

    __slots__ = ()
    __len__ = __iter__ = __eq__ = __hash__ = refuse


class Stranger:
    """An object that refuses everything."""

    __len__ = __eq__ = __repr__ = __hash__ = __bool__ = __iter__ = refuse

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class StrangeDict(dict[str, Any]):
    """A dict that refuses to show its items."""

    __len__ = __iter__ = __eq__ = keys = items = values = refuse
    __hash__ = None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    "make", [lambda: Irreps((1, 2)), Stranger, lambda: StrangeDict(a=[1])]
)
@pytest.mark.parametrize("inside", [True, False])
def test_objects_that_refuse_everything_break_no_conversion(
    make: Any, *, lazy: bool, training: bool, inside: bool
) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).train(training)
    value = make()
    model[0].stranger = {"a": [value]} if inside else value
    x = torch.rand(2, 4)
    converted = same(
        model, lambda: amprewrite.convert(model, args=None if lazy else (x,))
    )
    torch.testing.assert_close(converted(x), model(x), atol=0.05, rtol=0.05)
    assert amprewrite.verify(model, converted, (x,)).ok
    assert (model[0].stranger["a"][0] if inside else model[0].stranger) is value


class Stopped(nn.Module):
    """A model that an interrupt, or an error, stops in its forward."""

    def __init__(self, error: type[BaseException], when: int) -> None:
        super().__init__()
        self.parts = Twins()
        self.e = nn.Parameter(torch.ones(4), requires_grad=False)
        self.count, self.log = 0, [0]
        ticks = iter(range(when))
        self.tick: Any = ticks.__next__
        self.error = error

    def forward(self, x: Any) -> Any:
        self.e.data.mul_(2)
        self.count += 1
        self.log.append(self.count)
        y = self.parts(x) * self.e
        self.stop()
        return y + self.count

    @torch.compiler.disable
    def stop(self) -> None:
        try:
            self.tick()
        except StopIteration:
            raise self.error from None


def first_call(model: Any, x: Any) -> None:
    amprewrite.convert(model)(x)


def call_of_compiled(model: Any, x: Any) -> None:
    amprewrite.convert(model, args=(x,))


def verified(model: Any, x: Any) -> None:
    amprewrite.verify(model, nn.ReLU(), (x,))


def seen(model: Any, x: Any) -> None:
    amprewrite.histogram(model, (x,), gradients=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("action", [call_of_compiled, verified, seen])
def test_a_model_that_is_stopped_is_as_before(
    action: Any, error: Any, *, training: bool
) -> None:
    stopped = 0
    for when in range(6):
        model, x = Stopped(error, when).train(training), torch.rand(2, 4)
        with suppress(AmpError, KeyboardInterrupt, RuntimeError):
            same(model, lambda: action(model, x))  # noqa: B023  # it is called at once
            break
        stopped += 1
    assert stopped


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_first_call_that_is_stopped_before_it_is_the_users(error: Any) -> None:
    model, x = Stopped(error, 0), torch.rand(2, 4)
    converted = amprewrite.convert(model)
    with pytest.raises((KeyboardInterrupt, CaptureError)):
        same(model, lambda: converted(x))


def test_a_refused_first_call_is_taken_back() -> None:
    class Broken(Counted):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y.relu().to_sparse().to_dense() + torch.nested.nested_tensor(
                [y[0], y[1]], layout=torch.jagged
            ).to_padded_tensor(0.0)

    model, x = Broken().train(), torch.rand(2, 4)
    converted = amprewrite.convert(model)
    with warnings.catch_warnings(), suppress(CaptureError):
        warnings.simplefilter("ignore")
        before = state_of(model)
        try:
            converted(x)
        except CaptureError:
            assert differences(before, state_of(model)) == []
            raise


AVERAGE = torch.zeros(4)


class Outside(nn.Module):
    """A forward that writes to a tensor outside of parameters and buffers."""

    def __init__(self, write: Callable[[Any], object], place: str) -> None:
        super().__init__()
        self.l, self.write, self.place = nn.Linear(4, 4), write, place
        self.average, self.averages = torch.zeros(4), {"l": torch.zeros(4)}

    def written(self) -> Any:
        if self.place == "attribute":
            return self.average
        return self.averages["l"] if self.place == "dict" else AVERAGE

    def forward(self, x: Any) -> Any:
        self.write(self.written())
        return self.l(x) + self.written()


def without_gradients(tensor: Any) -> None:
    with torch.no_grad():
        tensor.mul_(0.9).add_(1)


def one_element(tensor: Any) -> None:
    tensor.data[1] = tensor.data[1] + 1


WRITES = {
    "in place": lambda t: t.add_(1),
    "without gradients": without_gradients,
    "data": lambda t: t.data.add_(1),
    "an element of data": one_element,
    "detached": lambda t: t.detach().copy_(t + 1),
    "a slice": lambda t: t[1:].add_(1),
    "out=": lambda t: torch.add(t, 1, out=t),
    "array": lambda t: t.numpy().__iadd__(1),
}


@pytest.mark.parametrize("place", ["attribute", "dict", "global"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lazily", [False, True])
def test_a_tensor_outside_is_written_once_a_call(
    write: str, place: str, *, lazily: bool
) -> None:
    """As by plain code: its program does not write to a copy of its own instead."""
    x = torch.randn(2, 4)

    def runs(*, converted: bool) -> list[Any]:
        AVERAGE.zero_()
        torch.manual_seed(0)
        model: Any = Outside(WRITES[write], place).eval()
        if converted:
            before, plain = AVERAGE.clone(), model
            model = amprewrite.convert(model, "off", args=None if lazily else (x,))
            assert torch.equal(before, AVERAGE)
            assert torch.equal(plain.average, before)
        return [(model(x), model.written().clone()) for _ in range(3)]

    for ours, plain in zip(runs(converted=True), runs(converted=False), strict=True):
        assert all(map(torch.allclose, ours, plain))

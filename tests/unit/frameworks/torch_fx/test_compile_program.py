"""Programs compiled in place."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.autograd import forward_ad

import amprewrite
from amprewrite.frameworks.torch_fx.compat import compiling
from tests.torch_programs import relative_error

X = torch.linspace(-1, 1, 32).reshape(2, 16)


class Counting(nn.Module):
    """A model that writes to a buffer, and reads a weight low and full."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(16, 16), nn.Parameter(torch.eye(16))
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return nn.functional.linear(self.layer(x), self.table) + self.table.exp()[0]


Made = Callable[[], tuple[Any, Any]]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compile in a moment: what is frozen holds copies of its weights, as inductor."""
    made: list[bool] = []

    def compiled(
        function: Any, *, frozen: bool = False, **_: Any
    ) -> Callable[..., Any]:
        if not frozen:
            return function
        made.append(frozen)
        program = function.__self__
        held = {n: p.detach().clone() for n, p in program.named_parameters()}

        def run(*args: Any, **kwargs: Any) -> Any:
            places = dict(program.named_parameters())
            before = {name: places[name].data for name in held}
            try:
                for name, data in held.items():
                    places[name].data = data
                return function(*args, **kwargs)
            finally:
                for name, data in before.items():
                    places[name].data = data

        return run

    monkeypatch.setattr(compiling, "compiled_function", compiled)
    return made


def pair(**options: Any) -> tuple[Any, Any]:
    """Return a model converted and compiled, and the same one run eagerly."""
    torch.manual_seed(0)
    model = Counting().eval()
    made = amprewrite.convert(copy.deepcopy(model), args=(X,), compile=True, **options)
    return made, amprewrite.convert(model, args=(X,), **options)


def test_a_frozen_program_follows_every_change_of_its_weights(
    frozen: list[bool],
) -> None:
    made, plain = pair(training=False)
    with torch.no_grad():
        for _ in range(3):  # its own writes to a buffer are no change
            assert torch.equal(made(X), plain(X))
        assert len(frozen) == 1
        state = {name: -2 * held for name, held in plain.state_dict().items()}
        for module in (made, plain):
            module.load_state_dict(state)
        assert torch.equal(made(X), plain(X))
        assert len(frozen) == 2
        for factor in (2.0, 4.0):
            for module in (made, plain):
                module.table.mul_(factor)
            assert torch.equal(made(X), plain(X))
        assert len(frozen) == 3  # and then no more
        assert torch.equal(made.calls, plain.calls)


def test_gradients_and_training_are_not_frozen(frozen: list[bool]) -> None:
    made, plain = pair(training=False)
    for module in (made, plain):
        module(X).sum().backward()
    assert torch.equal(made.table.grad, plain.table.grad)
    made, plain = pair(training=True)
    with torch.no_grad():
        assert torch.equal(made(X), plain(X))
    assert not frozen


def test_forward_derivatives_are_not_compiled(frozen: list[bool]) -> None:
    """Compiled code gives none, without a word (torch 2.13)."""
    made, plain = pair(training=False)
    with torch.no_grad(), forward_ad.dual_level():
        given = forward_ad.make_dual(X, torch.ones_like(X))
        found, wanted = (forward_ad.unpack_dual(one(given)) for one in (made, plain))
    assert torch.equal(found.primal, wanted.primal)
    assert torch.equal(found.tangent, wanted.tangent)
    assert not frozen


def test_copies_and_other_captures_have_the_weights_of_now(frozen: list[bool]) -> None:
    made, plain = pair(training=False)
    with torch.no_grad():
        made(X)
        zeros = {name: torch.zeros_like(p) for name, p in made.named_parameters()}
        found = torch.func.functional_call(made, zeros, (X,))
        assert torch.equal(found, torch.ones_like(found))
        assert torch.equal(made(X), plain(X))
        twin = copy.deepcopy(made)
        for module in (made, twin, plain):
            module.table.mul_(3)
        expected = plain(X)
        assert torch.equal(twin(X), expected)
        program = torch.export.export(made, (X,))
        assert torch.equal(program.module()(X), expected)
    assert frozen


@pytest.mark.slow  # compiles C++
def test_inductor_takes_the_weights_for_constants() -> None:
    torch.compiler.reset()
    made, plain = pair(training=False)
    program = next(iter(made._amprewrite.shared.programs))
    with torch.no_grad():
        assert relative_error(made(X), plain(X)) < 4e-3
        before = made(X)
        made.table.data[0, 1] = 5.0  # torch does not count it, and no sample is there
        assert torch.equal(made(X), before)
        made.table[0, 1] = 5.0
        plain.table[0, 1] = 5.0
        assert relative_error(made(X), plain(X)) < 4e-3
        made.table.data.mul_(2)  # torch does not count it, but samples differ
        plain.table.mul_(2)
        assert relative_error(made(X), plain(X)) < 4e-3
    assert program.is_compiled


@pytest.mark.slow  # compiles C++
def test_frozen_code_is_that_of_the_arguments_and_of_the_state_of_torch() -> None:
    torch.compiler.reset()
    made, plain = pair(training=False, dynamic_shapes=({0: torch.export.Dim("n")},))
    with torch.no_grad():
        for given in (X, X[:1], torch.cat([X, X]), X.t().contiguous().t()):
            assert relative_error(made(given), plain(given)) < 4e-3
            assert made(given).dtype == plain(given).dtype
        with torch.autocast("cpu", torch.float16):
            assert relative_error(made(X), plain(X)) < 4e-3
        for module in (made, plain):  # a buffer that the program writes to is its input
            module.calls = torch.full((), 7.0)
        assert relative_error(made(X), plain(X)) < 4e-3
        assert made.calls == plain.calls == 8
    assert relative_error(made(X), plain(X)) < 4e-3

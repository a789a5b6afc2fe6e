"""What users do with a converted torch module, beside calling it."""

import copy
import inspect
import random
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import numpy as np
from torch import Tensor, nn
from torch.utils import checkpoint

import amprewrite
from amprewrite.errors import CaptureError, UnsupportedError
from tests.torch_programs import relative_error

ROUNDING = 2.0**-8
X = torch.linspace(-1, 1, 24).reshape(3, 8)
ARGS = [(X,), None]
CALLS: list[int] = []


class Net(nn.Module):
    """A model of two linear layers, one without a bias."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.last = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x)))) * self.gain


def made(kind: type[nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return kind().eval()


def is_close(found: Tensor, expected: Tensor) -> bool:
    return relative_error(found, expected) < 4 * ROUNDING


class Doubled(Net):
    """A model with a call around its forward."""

    def __call__(self, text: str) -> Tensor:
        return super().__call__(torch.full((3, 8), float(len(text)))) * 2


@pytest.mark.parametrize("args", ARGS)
def test_a_call_of_the_class_runs_once_around_the_programs(args: Any) -> None:
    model = made(Doubled)
    converted: Any = amprewrite.convert(model, args=args)
    assert is_close(converted("four"), model("four"))
    inner = amprewrite.convert(nn.Sequential(model).eval(), args=("four",))
    assert is_close(inner("four"), model("four"))


class ByPython(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * random.random()


class ByNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(np.random.rand())  # noqa: NPY002  # the global generator is tested


class ByItself(Net):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.random.default_rng(1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(self.numbers.random())


@pytest.mark.parametrize("args", ARGS)
@pytest.mark.parametrize("kind", [ByPython, ByNumpy, ByItself])
def test_random_numbers_of_python_and_numpy_are_drawn_at_each_call(
    kind: Any, args: Any
) -> None:
    model = made(kind)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the global one
    converted = amprewrite.convert(copy.deepcopy(model), args=args)
    found = [converted(X) for _ in range(2)]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the global one
    assert all(is_close(one, model(X)) for one in found)


class ByAGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = random.Random(1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.numbers.random()


def test_a_generator_of_python_is_refused_unless_nothing_is_drawn() -> None:
    class Trained(ByAGenerator):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else Net.forward(self, x)

    for args in ARGS:
        with pytest.raises(CaptureError, match=r"numbers, a random\.Random"):
            amprewrite.convert(made(ByAGenerator), args=args)(X)
    model = made(Trained)
    assert is_close(amprewrite.convert(model, args=(X,))(X), model(X))


class Counting(Net):
    """A model that counts its calls in a global variable, which scales its output."""

    def forward(self, x: Tensor) -> Tensor:
        CALLS.append(1)
        return super().forward(x) * len(CALLS)


@pytest.mark.parametrize("args", ARGS)
def test_a_global_list_is_written_to_once_for_each_call(args: Any) -> None:
    model = made(Counting)
    CALLS.clear()
    converted = amprewrite.convert(model, args=args)
    found = [converted(X) for _ in range(2)]
    assert CALLS == [1, 1]
    CALLS.clear()
    assert all(is_close(one, model(X)) for one in found)


@pytest.mark.parametrize("args", ARGS)
def test_what_is_set_on_its_class_is_not_set_on_the_models(args: Any) -> None:
    class Own(Net):
        pass

    model = made(Own)
    converted: Any = amprewrite.convert(model, args=args)
    before = converted(X)
    type(converted).gain = 3.0
    assert "gain" not in vars(Own)
    assert is_close(converted(X), before)
    Own.gain = 3.0
    converted.recapture(args=(X,))
    assert is_close(converted(X), 3 * before)
    with mock.patch.object(type(converted), "forward", lambda self, x: self.first(x)):
        assert is_close(converted(X), model.first(X))
    assert is_close(converted(X), 3 * before)
    assert "forward" not in vars(Own)


@pytest.mark.parametrize("name", ["first.weight", "first.bias", "last.weight"])
def test_one_tensor_may_be_replaced_for_a_call_in_the_dtype_of_the_model(
    name: str,
) -> None:
    model = made()
    converted = amprewrite.convert(model, args=(X,))
    weight = model.get_parameter(name).detach() * 2

    def output(one: nn.Module, weight: Tensor) -> Tensor:
        return torch.func.functional_call(one, {name: weight}, (X,))

    assert is_close(output(converted, weight), output(model, weight))
    loss = [lambda w, one=one: output(one, w).sum() for one in (converted, model)]
    found, expected = (torch.func.grad(function)(weight) for function in loss)
    assert found.dtype == torch.float32
    assert relative_error(found, expected) < 2.0**-5
    assert is_close(converted(X), model(X))


def test_a_program_that_writes_in_place_is_not_run_twice_for_it() -> None:
    class Counted(Net):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return super().forward(x)

    model = made(Counted)
    converted: Any = amprewrite.convert(model, args=(X,))
    weights = {"last.weight": model.last.weight.detach() * 2}
    with pytest.raises(UnsupportedError, match=r"another dtype.*call it again"):
        torch.func.functional_call(converted, weights, (X,))
    found = torch.func.functional_call(converted, weights, (X,))
    assert is_close(found, torch.func.functional_call(model, weights, (X,)))
    assert int(converted.calls) == 2


@pytest.mark.parametrize("name", ["_parameters", "_buffers"])
def test_a_tensor_written_where_none_stood_in_the_dict_is_followed(name: str) -> None:
    class Shifted(Net):
        shift: Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", None)

        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x if self.shift is None else x + self.shift

    model = made(Shifted)
    converted = amprewrite.convert(model, args=(X,))
    converted(X)
    for one in (model, converted):
        if name == "_parameters":
            one.last._parameters["bias"] = nn.Parameter(torch.full((8,), 5.0))
        else:
            one._buffers["shift"] = torch.full((8,), 5.0)
    assert is_close(converted(X), model(X))
    captured = len(converted.plans)
    twin = copy.deepcopy(converted)
    weights = (
        {"last.bias": torch.zeros(8)} if name == "_parameters" else {"shift": X[0]}
    )
    for one in (converted, twin, converted):
        found = torch.func.functional_call(one, weights, (X,))
        assert is_close(found, torch.func.functional_call(model, weights, (X,)))
    assert len(converted.plans) == captured, "a tensor in the place of another"
    assert type(vars(amprewrite.original(converted).last)["_parameters"]) is dict


@pytest.mark.filterwarnings("ignore")  # of the breaks around it, if dynamo captures
@pytest.mark.parametrize("args", ARGS)
def test_a_converted_part_is_converted_with_the_model_around_it(args: Any) -> None:
    inner = made()
    outer = nn.Sequential(amprewrite.convert(inner, args=(X,)), nn.Linear(8, 2)).eval()
    converted = amprewrite.convert(outer, args=args)
    assert is_close(converted(X), outer[1](inner(X)))


@pytest.mark.parametrize("args", ARGS)
def test_the_first_call_may_be_inside_of_a_checkpoint(args: Any) -> None:
    model = made().train()
    converted = amprewrite.convert(model, args=args)
    for rows in (3, 2):  # the second shape is captured inside of it in both forms
        x = X[:rows]
        model.zero_grad()
        untyped: Any = checkpoint
        untyped.checkpoint(converted, x, use_reentrant=False).square().sum().backward()
        found = model.first.weight.grad.clone()
        model.zero_grad()
        model(x).square().sum().backward()
        assert relative_error(found, model.first.weight.grad) < 2.0**-5


@pytest.mark.parametrize("args", ARGS)
def test_weights_can_be_swapped(args: Any) -> None:
    """torch refuses to swap a tensor that has weak references."""
    model, other = made(), made()
    with torch.no_grad():
        other.first.weight.mul_(-1.5)
    converted: Any = amprewrite.convert(model, args=args)
    converted(X)
    torch.utils.swap_tensors(
        converted.first.weight, nn.Parameter(other.first.weight.detach().clone())
    )
    model.load_state_dict(other.state_dict())
    assert is_close(converted(X), model(X))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        converted.load_state_dict(made().state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert is_close(converted(X), made()(X))


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated, and warns of sizes
def test_torchscript_traces_what_was_exported_and_says_so_of_the_rest(
    tmp_path: Any,
) -> None:
    model = made()
    converted: Any = amprewrite.convert(model, args=(X,))
    traced = torch.jit.trace(converted, (X,))
    traced.save(tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt")
    assert torch.equal(loaded(X), converted(X))
    assert loaded.first.weight.dtype == torch.bfloat16
    lazy = amprewrite.convert(model)
    with pytest.raises(UnsupportedError, match=r"torch\.jit\.trace.*with args"):
        torch.jit.trace(lazy, (X,))
    for one in (converted, nn.Sequential(lazy)):
        with pytest.raises(UnsupportedError, match=r"TorchScript cannot compile Net"):
            torch.jit.script(one)
    with pytest.raises(UnsupportedError, match=r"symbolic_trace.*converted\.rewritten"):
        torch.fx.symbolic_trace(converted)


def test_its_attributes_can_be_listed_before_the_first_call() -> None:
    lazy = amprewrite.convert(made())
    assert "plan" not in dict(inspect.getmembers(lazy))
    lazy(X)
    assert "plan" in dict(inspect.getmembers(lazy))


class Taught(Net):
    """A model with a teacher that is kept out of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [Net().requires_grad_(False)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - self.teacher[0](x)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("args", ARGS)
def test_a_module_that_is_no_submodule_is_followed(
    args: Any, *, training: bool
) -> None:
    model: Any = made(Taught)
    converted: Any = amprewrite.convert(model, args=args, training=training)
    assert (converted.teacher[0] is model.teacher[0]) is training
    for _ in range(2):
        assert is_close(converted(X), model(X))
        for one in {
            id(m.teacher[0]): m.teacher[0] for m in (model, converted)
        }.values():
            one.last.weight.data.mul_(-2)  # torch counts no such write


def test_a_shallow_copy_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"copy\.copy.*use copy\.deepcopy"):
        copy.copy(amprewrite.convert(made()))


@pytest.mark.parametrize("args", ARGS)
def test_a_vector_of_the_parameters_is_written_back(args: Any) -> None:
    model, converted = made(), amprewrite.convert(made(), args=args)
    converted(X).sum().backward()
    for one in (model, converted):
        vector = nn.utils.parameters_to_vector(one.parameters())
        nn.utils.vector_to_parameters(vector * 1.5, one.parameters())
    assert is_close(converted(X), model(X))


def test_tensors_made_of_low_weights_are_named_where_they_do_not_fit() -> None:
    converted: Any = amprewrite.convert(made(), args=(X,))
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(converted.first)
    with pytest.raises(
        UnsupportedError,
        match=r"part first has weight_g in bfloat16, made of weights that are stored "
        r"low.*change amprewrite.original\(model\)",
    ):
        converted(X)

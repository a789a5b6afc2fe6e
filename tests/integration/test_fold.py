"""Weights cast once at conversion: the bits of casts at run time, in less memory."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from tests.golden.cases import CASES
from tests.torch_programs import LOW, Program

WIDTH = 16


def linear(**options: Any) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, **options)


def x() -> Any:
    return torch.randn(4, WIDTH)


def bits(output: Any) -> list[bytes]:
    """Return every tensor of an output as bytes, NaN and -0 included."""
    leaves = torch.utils._pytree.tree_leaves(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [
        t.contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors
    ]


def run(model: nn.Module, args: Iterable[Any], kwargs: Any, **options: Any) -> Any:
    """Convert ``model`` and return what it gives, with the converted model."""
    args = tuple(args)
    program = amprewrite.convert(model, args=args, kwargs=kwargs, **options)
    torch.manual_seed(0)
    with torch.no_grad():
        return bits(program(*args, **kwargs)), program


def assert_folding_changes_no_bit(
    model: nn.Module, args: Iterable[Any], kwargs: Any = None, policy: str = "bf16"
) -> Any:
    """Compare with the program that casts weights at run time; return the first.

    Both run as the plan has it: a program for inference rounds less when it is lowered.
    """
    given = {"policy": policy, "lowering": False}
    folded, program = run(model, args, kwargs or {}, training=False, **given)
    unfolded, other = run(model, args, kwargs or {}, training=True, **given)
    assert not other.plan.storage
    assert not [cast for cast in other.plan.casts if cast.folding == "copy"]
    assert not [cast for cast in program.plan.runtime_casts if cast.is_weight]
    assert folded == unfolded
    return program


def held(model: nn.Module) -> int:
    """Return the bytes of all parameters and buffers, each storage once."""
    tensors = [*model.parameters(), *model.buffers()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def tied(m: Any, ids: Any) -> Any:
    return m.head(m.norm(m.table(ids)))


def a_tied_model(words: int = 20, width: int = WIDTH) -> nn.Module:
    table, head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
    model = Program(tied, table=table, norm=nn.LayerNorm(width), head=head)
    head.weight = table.weight
    return model.eval()


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_a_folded_construct_gives_the_same_bits(name: str, policy: str) -> None:
    torch.manual_seed(0)
    model, args = CASES[name]()
    model.eval()
    for module in model.modules():
        round_table(module)
    assert_folding_changes_no_bit(model, args, policy=policy)


def round_table(module: nn.Module) -> None:
    """Round a table, whose rows begin a full stream, as one that is stored low is."""
    if isinstance(module, nn.Embedding):
        with torch.no_grad():
            module.weight.copy_(module.weight.to(LOW).to(torch.float16))


@pytest.mark.parametrize(
    "name",
    ["mlp", "lstm", "bert", "gpt2", "llama", "vit", "resnet"],
)
def test_a_folded_model_gives_the_same_bits_in_less_memory(name: str) -> None:
    pytest.importorskip("transformers")
    zoo = pytest.importorskip("benchmarks.zoo")
    model, args, kwargs = zoo.build(name, zoo.TINY, 2, 16)
    model.apply(round_table)
    program = assert_folding_changes_no_bit(model, args, kwargs)
    assert held(program) < 0.58 * held(model)


def test_a_tied_weight_is_stored_low_once_and_its_rows_are_rounded() -> None:
    """What a lookup reads of it is a cast of the row: a second copy is not kept."""
    model, ids = a_tied_model(), torch.randint(0, 20, (3, 5))
    folded, program = run(model, (ids,), {}, training=False)
    assert program.get_parameter("head.weight") is program.get_parameter("table.weight")
    assert held(program) == 20 * WIDTH * 2 + 2 * WIDTH * 4
    assert folded != run(model, (ids,), {}, training=True)[0]
    model.apply(round_table)
    assert_folding_changes_no_bit(model, (ids,))


def test_the_full_weights_are_freed_with_the_model() -> None:
    model = Program(lambda m, x: m.b(m.a(x)), a=linear(), b=linear()).eval()
    program = amprewrite.convert(model, args=(x(),))
    weights = [weakref.ref(parameter) for parameter in model.parameters()]
    del model
    gc.collect()
    assert [weight() for weight in weights] == [None] * 4
    assert all(parameter.dtype == LOW for parameter in program.parameters())


class Odd(nn.Module):
    """Weights that are expanded, strided, a slice of another, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        column = torch.randn(WIDTH, 1).expand(WIDTH, WIDTH)
        self.wide = nn.Parameter(column, requires_grad=False)
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.whole = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))
        self.part = nn.Parameter(self.whole.data[:WIDTH])
        strided = torch.randn(WIDTH, 2 * WIDTH)[:, ::2]
        self.register_buffer("strided", strided)
        self.register_buffer("hidden", torch.randn(WIDTH, WIDTH), persistent=False)

    def forward(self, x: Any) -> Any:
        x = x @ self.wide @ self.turned @ self.part @ self.whole.t()[:, :WIDTH]
        return x @ self.strided @ self.hidden


def test_strides_slices_and_buffers_make_no_difference() -> None:
    torch.manual_seed(0)
    model = Odd().eval()
    program = assert_folding_changes_no_bit(model, (x(),))
    tensors = [*program.parameters(), *program.buffers()]
    assert {tensor.dtype for tensor in tensors} == {LOW}
    assert program.get_parameter("turned").stride() == model.turned.stride()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_is_folded_in_every_mode_without_gradients(mode: Any) -> None:
    torch.manual_seed(0)
    model, given = Program(lambda m, x: m.a(x), a=linear()).eval(), x()
    expected, _ = run(model, (given,), {}, training=False)
    with mode():
        program = amprewrite.convert(model, args=(given,))
        assert program.get_parameter("a.weight").dtype == LOW
        assert bits(program(given)) == expected


def test_a_frozen_weight_is_low_for_inference_and_stays_frozen() -> None:
    model: Any = Program(lambda m, x: m.b(m.a(x)), a=linear(), b=linear())
    model.a.requires_grad_(False)
    program = amprewrite.convert(model.eval(), args=(x(),))
    flags = {n: (p.dtype, p.requires_grad) for n, p in program.named_parameters()}
    assert flags["a.weight"] == (LOW, False)
    assert flags["b.weight"] == (LOW, True)


@pytest.mark.parametrize("placement", ["promote", "paint", "optimal"])
def test_a_weight_that_is_read_full_too_is_held_full_without_a_copy(
    placement: str,
) -> None:
    """Low precision is to save memory: no weight is there twice."""
    torch.manual_seed(0)
    a = nn.Linear(256, 256)
    model = Program(lambda m, x: m.a(x) + m.a.weight.exp().sum(), a=a).eval()
    args, given = (torch.randn(256, 256),), {"placement": placement}
    folded, program = run(model, args, {}, training=False, **given)
    assert folded == run(model, args, {}, training=True, **given)[0]
    assert held(program) == 256 * 256 * 4 + 256 * 2
    (cast,) = [cast for cast in program.plan.runtime_casts if cast.is_weight]
    assert cast.value == "a_weight"


def test_an_optimal_plan_stores_a_tied_table_low_rather_than_cast_it() -> None:
    model, ids = a_tied_model(2000, 64), torch.randint(0, 2000, (8, 32))
    _, program = run(model, (ids,), {}, training=False, placement="optimal")
    assert program.get_parameter("head.weight").dtype == LOW
    assert not [cast for cast in program.plan.runtime_casts if cast.is_weight]
    assert program.plan.cost.lower_bound == program.plan.cost.total_bytes

"""Graphs as functions without attribute chains."""

import copy
import linecache
import pickle
import traceback
import weakref
from collections import namedtuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.fx import Graph

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.flat_runner import (
    call_runner,
    flat_runner,
    without_gradients,
)
from tests.torch_programs import relative_error

Pair = namedtuple("Pair", ("one", "two"))  # noqa: PYI024  # as users write them

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, more: dict[str, Any], *, scale: float = 1.0) -> Any:
        y = self.norm(self.layer(x)) * scale + more["shift"]
        a, b = y.chunk(2, dim=-1)
        low = a.masked_fill(more["mask"], float("-inf"))
        return {"pair": Pair(a, [b]), "size": x.shape, "low": low[..., 1:3]}


MORE = {"shift": X[0], "mask": X[:, :4] > 0}


def program_of(converted: Any) -> Any:
    converted(X, MORE, scale=2.0)
    return next(iter(converted._amprewrite.shared.programs))


@pytest.fixture(scope="module")
def converted() -> Any:
    model = Model().eval()
    return amprewrite.convert(model, args=(X, MORE), kwargs={"scale": 2.0})


def flat(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def test_a_call_gives_the_bits_and_the_structure_of_the_graph(converted: Any) -> None:
    found = converted(X, MORE, scale=2.0)
    assert isinstance(found["pair"], Pair)
    assert isinstance(found["pair"].two, list)
    assert isinstance(found["size"], torch.Size)
    program = program_of(converted)
    expected = program.rewritten(X, MORE, scale=2.0)
    pairs = zip(flat(found), flat(expected), strict=True)
    assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in pairs)
    assert found["low"].isinf().any()


def test_tensors_are_read_where_the_model_holds_them(converted: Any) -> None:
    before = converted(X, MORE, scale=2.0)["pair"].one
    twin = copy.deepcopy(converted)
    twin.load_state_dict({k: v * 2 for k, v in twin.state_dict().items()})
    assert relative_error(twin(X, MORE, scale=2.0)["pair"].one, before) > 0.1
    assert torch.equal(converted(X, MORE, scale=2.0)["pair"].one, before)
    zeros = {n: torch.zeros_like(p) for n, p in converted.named_parameters()}
    swapped = torch.func.functional_call(converted, zeros, (X, MORE), {"scale": 2.0})
    assert torch.equal(swapped["pair"].one, X[0, :4].expand(4, 4))
    assert torch.equal(converted(X, MORE, scale=2.0)["pair"].one, before)
    loaded = pickle.loads(pickle.dumps(converted))  # our own
    assert torch.equal(loaded(X, MORE, scale=2.0)["pair"].one, before)


def test_values_are_freed_after_their_last_use() -> None:
    graph, made = Graph(), list[Any]()

    def doubled(value: Tensor) -> Tensor:
        result = value * 2
        made.append(weakref.ref(result))
        return result

    def seen(value: Tensor) -> Tensor:
        assert [ref() is None for ref in made] == [True, False]
        return value + 1

    node = graph.placeholder("x")
    for function in (doubled, doubled, seen):
        node = graph.call_function(function, (node,))
    graph.output((node,))
    (result,) = flat_runner(nn.Module(), graph)(X)
    assert torch.equal(result, X * 4 + 1)


def test_arguments_of_nodes_keep_their_types() -> None:
    graph, got = Graph(), list[Any]()
    x = graph.placeholder("x")
    given: Any = ([x, 1], (x,), (), {"a": x, 2: None}, slice(None, x, 3), ..., "t\n'")
    more: Any = {
        "f": 0.1,
        "nan": float("nan"),
        "d": torch.float16,
        "c": 1j,
        "neg": -0.0,
    }

    def note(*args: Any, **kwargs: Any) -> Any:
        got.extend((args, kwargs))
        return args[1][0]

    graph.output(graph.call_function(note, given, more))
    assert flat_runner(nn.Module(), graph)(7) == 7
    assert got[0] == (
        [7, 1],
        (7,),
        (),
        {"a": 7, 2: None},
        slice(None, 7, 3),
        ...,
        "t\n'",
    )
    assert repr(got[1]) == repr(more)


def test_an_error_shows_its_line() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    product = graph.call_function(torch.ops.aten.mm.default, (x, x))
    graph.output(product)
    run = flat_runner(nn.Module(), graph)
    with pytest.raises(RuntimeError) as raised:
        run(X)
    last = traceback.extract_tb(raised.tb)[-1]
    assert last.filename.startswith("<amprewrite program")
    assert "v_mm" in linecache.getline(last.filename, last.lineno or 0)


def test_arguments_in_containers_are_flattened() -> None:
    class Sum(nn.Module):
        def forward(self, pair: Any, *, more: Any) -> Any:
            return (pair[0] + pair[1], more["c"])

    given, named = ((X, X * 2),), {"more": {"c": X * 3}}
    module: Any = torch.export.export(Sum(), given, named).module()
    structure = module.graph._codegen.pytree_info
    run = call_runner(module, module.graph, structure.in_spec, structure.out_spec)
    one, two = run(given, named)
    assert torch.equal(one, X * 3)
    assert torch.equal(two, X * 3)


def test_derivatives_of_any_kind_run_the_other_function() -> None:
    seen: list[str] = []
    run = without_gradients(
        lambda x: seen.append("first") or x, lambda x: seen.append("other") or x
    )
    x = torch.ones(2)
    run(x)
    with torch.no_grad():
        run(x)
        torch.func.vmap(run)(x)
        with torch.autograd.forward_ad.dual_level():
            run(x)
    assert seen == ["other", "first", "other", "other"]

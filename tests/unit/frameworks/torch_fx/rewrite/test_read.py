"""Reading an ATen-level graph: values, ops, and where they come from."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

from amprewrite.frameworks.torch_fx.aten.ops import dtype_name
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.ir import Op
from tests.torch_programs import Program


def reading(function: Any, *args: Any, **parts: Any) -> Reading:
    model = Program(function, **parts).eval()
    return read(export_model(model, args, {}).module)


def ops_named(found: Reading, canonical: str) -> list[Op]:
    return [op for op in found.graph.ops if op.canonical == canonical]


def x(*shape: int) -> Any:
    return torch.randn(*(shape or (4, 8)))


def test_values_have_kind_dtype_and_shape() -> None:
    found = reading(
        lambda m, x: m.a(x) + m.shift + torch.tensor(2.0),
        x(),
        a=nn.Linear(8, 8),
        shift=torch.ones(8),
    )
    kinds = {value.kind: value for value in found.graph.inputs()}
    assert set(kinds) == {"input", "parameter", "buffer", "constant"}
    assert kinds["input"].shape == (4, 8)
    assert kinds["constant"].shape == ()
    assert found.weights[kinds["buffer"].name] == ("shift",)


def test_an_op_has_its_place_in_the_model_and_in_the_file() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.block[0](x)

    found = reading(forward, x(), block=nn.Sequential(nn.Linear(8, 8)))
    (linear,) = found.graph.ops
    assert linear.path == "block.0"
    line = forward.__code__.co_firstlineno + 1
    assert linear.source == f"test_read.py:{line}"
    assert linear.native == "aten.linear.default"
    assert linear.contracted == 8


def test_a_tied_weight_is_one_value_with_two_names() -> None:
    table = nn.Embedding(9, 8)
    head = nn.Linear(8, 9, bias=False)
    head.weight = table.weight
    found = reading(
        lambda m, i: m.head(m.table(i)), torch.tensor([1]), table=table, head=head
    )
    assert len(list(found.graph.inputs("parameter"))) == 1
    (embedding,), (linear,) = ops_named(found, "embedding"), ops_named(found, "linear")
    assert embedding.operands[0] == linear.operands[1]


def test_an_op_with_several_results_has_a_value_for_each() -> None:
    found = reading(lambda _, x: x.sort(-1)[0] + 1.0, x())
    (sort,) = ops_named(found, "sort")
    assert [found.graph.values[r].dtype for r in sort.results] == ["float32", "int64"]
    (add,) = ops_named(found, "add")
    assert add.operands == sort.results[:1]


def test_a_list_of_tensors_is_read_one_by_one() -> None:
    found = reading(lambda _, x: torch.cat([x, x, x.relu()]), x())
    (cat,) = ops_named(found, "cat")
    (relu,) = ops_named(found, "relu")
    assert cat.operands == ("x", "x", *relu.results) or len(cat.operands) == 3


def test_a_list_that_an_op_makes_is_read_whole() -> None:
    found = reading(lambda _, x: torch.cat(x.chunk(2, -1)), x())
    (chunk,), (cat,) = ops_named(found, "chunk"), ops_named(found, "cat")
    assert cat.operands == chunk.results


def test_views_share_the_storage_of_what_they_view() -> None:
    found = reading(lambda _, x: x.view(-1).clone().t(), x())
    graph = found.graph
    (view,), (clone,) = ops_named(found, "view"), ops_named(found, "clone")
    (given,) = graph.inputs()
    assert graph.storage(view.results[0]) == given.name
    assert graph.storage(clone.results[0]) == clone.results[0]


def test_writes_in_place_are_found() -> None:
    def forward(_: Any, x: Any, y: Any) -> Any:
        h = x.clone()
        h.add_(y)
        return h

    (add,) = ops_named(reading(forward, x(), x()), "add")
    assert add.mutates == (0,)
    assert add.operand_rule == "promote"


def test_a_region_without_gradients_is_entered() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.no_grad():
            h = m.a(x)
        return m.a(h)

    linears = ops_named(reading(forward, x(), a=nn.Linear(8, 8)), "linear")
    assert [bool(op.region) for op in linears] == [True, False]
    assert linears[1].operands[0] == linears[0].results[0]
    assert not any(op.fence for op in linears)


def test_a_region_of_autocast_is_entered_and_fenced() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            h = m.a(x)
        return m.a(h)

    linears = ops_named(reading(forward, x(), a=nn.Linear(8, 8)), "linear")
    assert [bool(op.fence) for op in linears] == [True, False]


def test_facts_that_casts_need_are_read() -> None:
    def forward(_: Any, x: Any, mask: Any) -> Any:
        h = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        h = torch.softmax(h, -1, dtype=torch.float32) + 1e-8
        return h.sum(-1), h.to(torch.float64)

    found = reading(forward, x(1, 4, 8), x(1, 4, 4))
    (attend,) = ops_named(found, "scaled_dot_product_attention")
    assert attend.masks == (3,)
    (softmax,) = ops_named(found, "softmax")
    assert (softmax.dtype_argument, softmax.has_dtype_argument) == ("float32", True)
    (total,) = ops_named(found, "sum")
    assert (total.dtype_argument, total.has_dtype_argument) == ("", True)
    (add,) = ops_named(found, "add")
    assert add.literals == (1e-8,)
    (cast,) = ops_named(found, "cast")
    assert cast.dtype_argument == "float64"


def test_outputs_are_read_in_order_and_may_repeat() -> None:
    found = reading(lambda _, x: {"b": x.relu(), "a": [x, x]}, x())
    (relu,), (given,) = found.graph.ops, found.graph.inputs()
    assert found.graph.outputs == (*relu.results, given.name, given.name)


def test_extents_that_vary_are_expressions() -> None:
    model = Program(lambda _, x: torch.cat([x, x]))
    shapes = (({0: torch.export.Dim("batch", min=2)},),)
    found = read(export_model(model.eval(), (x(),), {}, shapes).module)
    (given,) = found.graph.inputs()
    assert isinstance(given.shape[0], str)
    cat = found.graph.values[found.graph.outputs[0]]
    assert cat.shape == (f"2*{given.shape[0]}", 8)


def test_placeholders_may_be_named_as_weights() -> None:
    captured = export_model(Program(lambda _, x, y: x @ y.t()).eval(), (x(), x()), {})
    names = [n.name for n in captured.module.graph.find_nodes(op="placeholder")]
    found = read(captured.module, names[1:])
    assert [v.kind for v in found.graph.inputs()] == ["input", "parameter"]


def test_dtypes_have_neutral_names() -> None:
    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert dtype_name(torch.float8_e4m3fn) == "float8_e4m3fn"

"""How ATen spells the canonical ops: names, refined names, arguments, lengths."""

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite import load_policy
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.ops import op_table
from amprewrite.unit_scaling.torch.scale import OPERATOR
from tests.oracles.opinfo import low
from tests.torch_programs import Call, traced

MATRIX, VECTOR, IMAGE = torch.ones(4, 4), torch.ones(4), torch.ones(1, 2, 4, 4)
BATCH = torch.ones(3, 4, 5)
INDEX = torch.tensor([0, 1])


def names_of_aten():
    """Packets of ATen, and own operators by their qualified names."""
    every = torch._C._dispatch_get_all_op_names()
    packets = {name.partition(".")[0].removeprefix("aten::") for name in every}
    return packets | {s.name[6:] for s in torch._C._jit_get_all_schemas()}


def test_refined_names_are_sorted():
    assert all(a < b for a, b in pairwise(ops.REFINED))


def test_every_name_is_an_operator_of_torch():
    assert not set(op_table().aten) - names_of_aten()
    assert str(OPERATOR).startswith("amprewrite.scale.")  # imported, and registered


def test_canonical_names_are_classified():
    known = set(load_policy("bf16").ops)
    assert set(op_table().ops) - known == {"cast"}


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (torch.mm, (MATRIX, MATRIX), "matmul"),
        (torch.bmm, (BATCH, BATCH.mT), "matmul"),
        (torch.subtract, (VECTOR, VECTOR), "sub"),
        (torch.concat, ([VECTOR, VECTOR],), "cat"),
        (torch.special.expit, (VECTOR,), "sigmoid"),
        (torch.special.gammaln, (VECTOR,), "lgamma"),
        (torch.clip, (VECTOR, 0, 1), "clamp"),
        (torch.nn.functional.conv2d, (IMAGE, IMAGE), "conv"),
        (torch.permute_copy, (MATRIX, (1, 0)), "permute"),
        (lambda x: x.clone().relu_(), (VECTOR,), "relu"),
        (lambda x: x.clone().add_(1), (VECTOR,), "add"),
        (torch.nn.functional.gelu, (VECTOR,), "gelu"),
    ],
)
def test_canonical_name(function, args, name):
    assert ops.canonical_name(traced(function, *args)) == name


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (lambda x: x.to(torch.float64), (VECTOR,), "cast"),
        (lambda x: x.to(torch.float32), (VECTOR,), "cast"),
        (lambda x, y: x.type_as(y), (VECTOR, INDEX), "cast"),
        (lambda x: x**2, (VECTOR,), "integer_pow"),
        (lambda x: x**3.0, (VECTOR,), "integer_pow"),
        (lambda x: x**0.5, (VECTOR,), "pow"),
        (lambda x, y: x**y, (VECTOR, VECTOR), "pow"),
        (lambda x: 2**x, (VECTOR,), "pow"),
        (lambda x: x.max(), (VECTOR,), "amax"),
        (lambda x: x.min(), (VECTOR,), "amin"),
        (lambda x: x.max(0), (VECTOR,), "max_dim"),
        (torch.max, (VECTOR, VECTOR), "maximum"),
        (torch.min, (VECTOR, VECTOR), "minimum"),
        (lambda x: x.view(2, 2), (VECTOR,), "view"),
        (lambda x: x.view(torch.int32), (VECTOR,), "bitcast"),
        (lambda x, y: x / y, (VECTOR, VECTOR), "div"),
        (lambda x: x.div(3, rounding_mode="floor"), (VECTOR,), "floor_divide"),
        (lambda x, i, y: x.scatter(0, i, y), (VECTOR, INDEX, VECTOR), "scatter"),
        (
            lambda x, i, y: x.scatter(0, i, y, reduce="add"),
            (VECTOR, INDEX, VECTOR),
            "scatter_reduce",
        ),
        (lambda x, i: x.index_put((i,), x[i]), (VECTOR, INDEX), "index_put"),
        (
            lambda x, i: x.index_put((i,), x[i], accumulate=True),
            (VECTOR, INDEX),
            "scatter_add",
        ),
        (lambda x, i: x.put(i, x[:2]), (VECTOR, INDEX), "put"),
        (lambda x, i: x.put(i, x[:2], accumulate=True), (VECTOR, INDEX), "scatter_add"),
    ],
)
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
def test_name_that_depends_on_the_arguments(function, args, name):
    assert ops.canonical_name(traced(function, *args)) == name


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("constant", "pad"),
        ("reflect", "reflection_pad2d"),
        ("replicate", "replication_pad2d"),
        ("circular", "_pad_circular"),
    ],
)
def test_each_mode_of_pad_is_an_op(mode, name):
    node = traced(lambda x: nn.functional.pad(x, (1, 1, 1, 1), mode=mode), IMAGE)
    assert ops.canonical_name(node) == name


@pytest.mark.parametrize(
    ("training", "name"), [(True, "batch_norm"), (False, "batch_norm_inference")]
)
def test_batch_norm_computes_statistics_only_when_training(training, name):
    mean, var = torch.zeros(2), torch.ones(2)

    def norm(x, mean, var):
        return nn.functional.batch_norm(x, mean.clone(), var.clone(), training=training)

    assert ops.canonical_name(traced(norm, IMAGE, mean, var)) == name


def test_native_names():
    assert ops.native_name(torch.ops.aten.linear.default) == "aten.linear.default"
    loop = torch.ops.higher_order.while_loop
    assert ops.native_name(loop) == "higher_order.while_loop"
    import operator

    assert ops.native_name(operator.getitem) == "operator.getitem"


def test_a_custom_operator_keeps_its_qualified_name():
    node = traced(low, VECTOR)
    assert ops.native_name(node.target) == "amptest.low.default"
    assert ops.canonical_name(node) == "amptest.low"


@pytest.mark.parametrize(
    ("function", "args", "length"),
    [
        (torch.matmul, (MATRIX, torch.ones(4, 7)), 4),
        (torch.matmul, (torch.ones(3, 1), torch.ones(1, 7)), 1),
        (torch.nn.functional.linear, (torch.ones(2, 6), torch.ones(5, 6)), 6),
        (torch.addmm, (MATRIX, torch.ones(4, 9), torch.ones(9, 4)), 9),
        (torch.baddbmm, (torch.ones(3, 4, 4), BATCH, BATCH.mT), 5),
        (torch.nn.functional.conv2d, (IMAGE, torch.ones(3, 2, 3, 3)), 18),
        (lambda x: torch.einsum("bij,bkj->bik", x, x), (BATCH,), 5),
        (lambda x: torch.einsum("bij,bij->b", x, x), (BATCH,), 20),
        (lambda x: torch.einsum("i,j->ij", x, x), (VECTOR,), None),
        (lambda x: torch.einsum("...i,...i->...", x, x), (BATCH,), 5),
        (lambda x: torch.tensordot(x, x, dims=0), (VECTOR,), 1),
        (lambda x: torch.tensordot(x, x, dims=2), (BATCH[0],), 20),
        (torch.relu, (VECTOR,), None),
    ],
)
def test_contracted_length(function, args, length):
    node = traced(function, *args)
    assert ops.contracted_length(node, ops.canonical_name(node)) == length


def test_a_symbolic_length_is_not_known():
    extent = torch.export.Dim("extent", min=2, max=9)
    shapes = {"args": ({1: extent}, {0: extent})}
    program = torch.export.export(
        Call(torch.matmul), (MATRIX, MATRIX), dynamic_shapes=shapes, strict=False
    )
    node = next(n for n in program.graph.nodes if "matmul" in str(n.target))
    assert ops.contracted_length(node, "matmul") is None

"""Where the network of a program ends and its loss begins, on programs as text."""

import pytest

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.unit_scaling.graph.units import differentiable, find_units, mark_loss

HEAD = "h = matmul x w\n"


def loss_of(text, closing=(), shape=()):
    """Return the units of the loss in lines ``y = matmul x w``; the last is returned.

    x is an input, labels one of integers; w, v and b are parameters.
    """
    values = {n: Value(n, "float32", (4, 4), "parameter") for n in "wvb"}
    values["x"] = Value("x", "float32", (4, 4), "input")
    values["labels"] = Value("labels", "int64", (4,), "input")
    ops, result = [], ""
    for line in text.strip().splitlines():
        result, _, name, *operands = line.split()
        values[result] = Value(result, "float32", (4, 4))
        ops.append(Op(result, name, f"aten.{name}", tuple(operands), (result,)))
    values[result] = Value(result, "float32", shape)
    graph = ProgramGraph(values, tuple(ops), (result,))
    live = differentiable(graph, closing)
    return [u.name for u in mark_loss(live, find_units(live), closing) if u.is_of_loss]


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        # what follows the last contraction: a loss written with the ops of activations
        ("h = matmul x w\nc = tanh h\ny = mean c", ["c", "y"]),
        ("h = matmul x w\nc = tanh h\nz = matmul c v\ny = mean z", ["y"]),
        ("h = matmul x w\nd = sub h x\ny = mean d", ["d", "y"]),
        # a parameter, or a residual branch, that is added belongs to the network
        ("h = matmul x w\nz = add h b\ny = mean z", ["y"]),
        ("h = matmul x w\nz = add x h\ny = mean z", ["y"]),
        # penalties and what targets go through
        ("h = matmul x w\np = square w\nq = sum p\nm = mean h\ny = add m q",
         ["p", "q", "m", "y"]),
        ("h = matmul x w\nt = exp x\nd = sub h t\ny = mean d", ["t", "d", "y"]),
        # scores of two towers are the network, an entropy is not
        ("h = matmul x w\ng = matmul x v\nm = mul h g\ns = sum m\ny = mean s", ["y"]),
        ("h = matmul x w\np = exp h\nq = tanh h\nm = mul p q\ny = sum m", ["m", "y"]),
        # a lookup is no contraction, but its products are no penalty
        ("e = embedding w labels\nf = embedding v labels\nm = mul e f\ny = sum m", []),
    ],
)  # fmt: skip
def test_the_loss_is_what_no_contraction_follows(text, loss):
    assert loss_of(text) == loss


def test_a_program_without_a_scalar_has_no_loss():
    assert not loss_of("h = matmul x w\ny = tanh h", shape=(4, 4))


def test_what_enters_the_next_turn_of_a_loop_is_followed_by_its_contraction():
    text = "h = matmul x w\nc = tanh h\ny = mean c"
    assert loss_of(text, (("c", "x"),)) == ["y"]

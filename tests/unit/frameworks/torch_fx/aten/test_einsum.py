"""Names of einsums, compared with the operators that torch runs for each."""

from random import Random

import pytest

pytest.importorskip("torch")

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from amprewrite.frameworks.torch_fx.aten.ops import einsum_length, einsum_name

EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1}


def node_of(equation, shapes):
    operands = [torch.ones(shape) for shape in shapes]
    graph = make_fx(lambda *xs: torch.einsum(equation, *xs), pre_dispatch=True)
    nodes = graph(*operands).graph.nodes
    return next(node for node in nodes if "einsum" in str(node.target))


class Ran(TorchDispatchMode):
    """Records the operators that are run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        name = function.overloadpacket.__name__
        if name == "sum":  # of one element it moves data
            dims = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
            name = "sum" if any(args[0].shape[d] > 1 for d in dims) else "view"
        self.names.add(name)
        return function(*args, **(kwargs or {}))


def expected(equation, shapes):
    """The name by the operators that run: those of no arithmetic move data."""
    with Ran() as ran:
        torch.einsum(equation, *(torch.ones(shape) for shape in shapes))
    if len(shapes) == 1:
        moves = "diagonal" if "diagonal" in ran.names else "permute"
        return "sum" if "sum" in ran.names else moves
    if "sum" in ran.names:
        return "einsum_sum"
    return "einsum" if "bmm" in ran.names else "einsum_product"


@pytest.mark.parametrize(
    ("equation", "shapes", "name"),
    [
        ("bn->b", [(2, 8)], "sum"),
        ("ii->", [(4, 4)], "sum"),
        ("ii", [(4, 4)], "sum"),
        ("...->", [(2, 8)], "sum"),
        ("... i -> ...", [(2, 8)], "sum"),
        ("...i->i", [(2, 3, 4)], "sum"),
        ("bn", [(2, 8)], "permute"),
        ("ba", [(2, 8)], "permute"),
        ("bii->bi", [(2, 4, 4)], "diagonal"),
        ("...ij->...ji", [(2, 3, 4)], "permute"),
        ("ij->j", [(1, 4)], "permute"),
        ("i,j->ij", [(4,), (5,)], "einsum_product"),
        ("bn,bn->bn", [(2, 8), (2, 8)], "einsum_product"),
        ("...,...", [(2, 8), (2, 8)], "einsum_product"),
        ("a...,b...->ab...", [(2, 8), (3, 8)], "einsum_product"),
        ("ii,i->i", [(3, 3), (3,)], "einsum_product"),
        ("a,b,c->abc", [(2,), (3,), (4,)], "einsum_product"),
        ("bn,b->b", [(2, 8), (2,)], "einsum_sum"),
        ("bn,bn->b", [(1, 8), (2, 1)], "einsum_sum"),
        ("bnk,bk->b", [(2, 3, 4), (2, 4)], "einsum_sum"),
        ("bi,bj,bk->b", [(2, 3), (2, 4), (2, 5)], "einsum_sum"),
        ("...,i->i", [(2, 8), (3,)], "einsum_sum"),
        ("bn,bn->b", [(2, 8), (2, 8)], "einsum"),
        ("ij,jk", [(3, 4), (4, 5)], "einsum"),
        ("...i,...i->...", [(2, 3), (3,)], "einsum"),
        ("bij,bjk,bkl->bil", [(2, 4, 5), (2, 5, 6), (2, 6, 3)], "einsum"),
    ],
)
def test_an_einsum_is_named_by_what_it_computes(equation, shapes, name):
    assert einsum_name(node_of(equation, shapes), "einsum") == name
    assert expected(equation, shapes) == name


def random_equation(random):
    """One or two terms of up to four labels, at times with an ellipsis or no result."""
    terms, shapes = [], []
    for _ in range(random.choice([1, 2, 2])):
        labels = [random.choice("abcde") for _ in range(random.randint(1, 4))]
        term, shape = "".join(labels), [EXTENTS[label] for label in labels]
        if random.random() < 0.3:
            at = random.randint(0, len(labels))
            term = f"{term[:at]}...{term[at:]}"
            shape[at:at] = [6, 7][random.randint(0, 2) :]
        terms.append(term)
        shapes.append(tuple(shape))
    labels = sorted(set("".join(terms)) - {"."})
    result = random.sample(labels, random.randint(0, len(labels)))
    ellipsis = ["..."] * ("..." in ",".join(terms) and random.random() < 0.7)
    arrow = f"->{''.join([*ellipsis, *result])}" * (random.random() < 0.8)
    return ",".join(terms) + arrow, shapes


@pytest.mark.parametrize("seed", range(200))
def test_random_equations_are_named_by_what_torch_runs(seed):
    equation, shapes = random_equation(Random(seed))
    node = node_of(equation, shapes)
    assert einsum_name(node, "einsum") == expected(equation, shapes), equation
    ones = torch.einsum(equation, *(torch.ones(shape) for shape in shapes))
    assert (ones == einsum_length(node)).all()


def test_an_einsum_without_shapes_keeps_its_name():
    node = node_of("bn->b", [(2, 8)])
    for operand in node.all_input_nodes:
        operand.meta.clear()
    assert einsum_name(node, "einsum") == "einsum"
    assert einsum_length(node) is None


def test_the_format_of_lists_is_read_too():
    graph = make_fx(lambda x: torch.einsum(x, [0, 1], [0]), pre_dispatch=True)
    nodes = graph(torch.ones(2, 8)).graph.nodes
    node = next(node for node in nodes if "einsum" in str(node.target))
    assert einsum_name(node, "einsum") == "sum"

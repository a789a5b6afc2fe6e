"""Faults that are planted in converted models are found, and named."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

import amprewrite
from amprewrite.frameworks.torch_fx.derived.classes import programs_of


class Run(nn.Module):
    """A function of two linear layers and the input."""

    def __init__(self, run):
        super().__init__()
        self.a, self.b, self.run = nn.Linear(32, 32), nn.Linear(32, 32), run

    def forward(self, x):
        return self.run(self.a, self.b, x)


class Image(nn.Sequential):
    """Convolutional layers, of an input that is made an image."""

    def forward(self, input):  # noqa: A002  # torch's own name
        return super().forward(input.reshape(-1, 4, 8, 8))


class Gates(nn.Module):
    """A recurrent layer, whose kernel rounds inside."""

    def __init__(self):
        super().__init__()
        self.a, self.gru = nn.Linear(32, 32), nn.GRU(32, 32, batch_first=True)

    def forward(self, x):
        return torch.tanh(self.gru(self.a(x))[0])


def attention(a, b, x):
    q = a(x)
    return b(F.scaled_dot_product_attention(q, q * 0.5, x))


def rotary(a, b, x):
    angle = torch.arange(x.shape[1])[:, None] * torch.logspace(0, -1, 32)
    q = a(x)
    return b(q * angle.cos() + q.roll(16, -1) * angle.sin())


def recurrent(a, b, x):
    h = torch.zeros_like(x[:, 0])
    for t in range(3):
        h = torch.tanh(a(x[:, t]) + b(h))
    return h


def routed(a, b, x):
    top, where = a(x).softmax(-1).topk(4, -1)
    kept = torch.gather(x, -1, where).sum(-1, keepdim=True)
    return b(x * top.sum(-1, keepdim=True)) + kept


def rms(a, b, x):
    y = a(x)
    return b(y * (y**2).mean(-1, keepdim=True).rsqrt())


def cosine(a, b, x):
    return F.normalize(a(x), dim=-1) @ F.normalize(b(x), dim=-1).mT


MODELS = {
    "mlp": lambda: Run(lambda a, b, x: b(F.gelu(a(x)))),
    "norm": lambda: Run(lambda a, b, x: b(F.layer_norm(a(x), (32,)))),
    "norm last": lambda: Run(lambda a, b, x: F.layer_norm(b(F.silu(a(x))), (32,))),
    "rms": lambda: Run(rms),
    "residual": lambda: Run(lambda a, b, x: x + b(F.relu(a(x + b(x))))),
    "gated": lambda: Run(lambda a, b, x: b(F.silu(a(x)) * a(x))),
    "attention": lambda: Run(attention),
    "softmax": lambda: Run(lambda a, b, x: (a(x) @ x.mT).softmax(-1) @ b(x)),
    "sine": lambda: Run(lambda a, b, x: b(torch.sin(3 * a(x)))),
    "rotary": lambda: Run(rotary),
    "recurrent": lambda: Run(recurrent),
    "routed": lambda: Run(routed),
    "einsum": lambda: Run(lambda a, b, x: torch.einsum("bij,bkj->bik", a(x), b(x))),
    "log": lambda: Run(lambda a, b, x: F.log_softmax(b(a(x)), -1)),
    "cosine": lambda: Run(cosine),
    "pooled": lambda: Run(lambda a, b, x: b(a(x).cumsum(1).amax(1))),
    "gates": Gates,
    "conv": lambda: Image(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)),
    "batch norm": lambda: Image(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)
    ),
    "group norm": lambda: Image(
        nn.Conv2d(4, 8, 3, groups=4), nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 4, 3)
    ),
}
"""Twenty small models of ``f32[4, 8, 32]``."""


def case(name):
    """The model, its arguments, and what convert made of it."""
    torch.manual_seed(len(name))
    model, args = MODELS[name]().eval(), (torch.randn(4, 8, 32),)
    return model, args, amprewrite.convert(model, args=args)


def times(target, factor):
    """A function that gives ``factor`` times what ``target`` does."""

    def wrong(*args, **kwargs):
        made = target(*args, **kwargs)
        if isinstance(made, torch.Tensor):
            return made * factor
        return type(made)(part * factor for part in made)

    return wrong


def runs(converted, graph):
    """Let a converted model run another graph."""
    programs = programs_of(converted)
    assert programs is not None
    programs.latest()._run_graph(graph)


def plant(converted, node, factor=1.1):
    """Let a node of the converted program give a multiple of its result."""
    node.target = times(node.target, factor)
    runs(converted, converted.rewritten.graph)


def op_nodes(converted, report):
    """The nodes of the ops whose errors a report has, in program order."""
    names = {op.op for op in report.ops if not op.inserted}
    nodes = converted.rewritten.graph.nodes
    return [n for n in nodes if n.name in names and n.op == "call_function"]


@pytest.mark.parametrize("name", MODELS)
def test_one_op_that_is_a_tenth_too_large_fails_and_is_named(name):
    model, args, converted = case(name)
    sound = amprewrite.verify(model, converted, args)
    assert sound.ok, sound.problems
    nodes = op_nodes(converted, sound)
    node = nodes[len(name) * 7 % len(nodes)]
    plant(converted, node)
    report = amprewrite.verify(model, converted, args)
    assert not report.ok
    assert [op.op for op in report.ops if op.is_fault] == [node.name]
    assert report.worst(1)[0].op == node.name
    assert any(f"op {node.name} " in problem for problem in report.problems)


@pytest.mark.parametrize("name", ["mlp", "softmax", "norm", "batch norm"])
def test_a_wrong_cast_is_named(name):
    model, args, converted = case(name)
    sound = amprewrite.verify(model, converted, args)
    casts = [op for op in sound.ops if op.inserted]
    assert casts
    chosen = casts[len(casts) // 2].op
    named = {node.name: node for node in converted.rewritten.graph.nodes}
    plant(converted, named[chosen])
    report = amprewrite.verify(model, converted, args)
    first = report.worst(1)[0]
    assert (first.op, first.inserted, first.is_fault) == (chosen, True, True)
    assert f"inserted op {chosen} " in " ".join(report.problems)
    assert not report.ok


def test_an_inserted_op_that_changes_values_is_named():
    model, args, converted = case("mlp")
    graph = converted.rewritten.graph
    node = next(n for n in graph.nodes if n.name == "gelu")
    with graph.inserting_after(node):
        wrong = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.1))
    node.replace_all_uses_with(wrong, delete_user_cb=lambda user: user is not wrong)
    runs(converted, graph)
    report = amprewrite.verify(model, converted, args)
    assert report.worst(1)[0].op == wrong.name
    assert report.worst(1)[0].inserted
    assert not report.ok


def test_a_wrong_weight_is_named():
    model, args, converted = case("mlp")
    with torch.no_grad():
        converted.b.weight.mul_(1.1)
    report = amprewrite.verify(model, converted, args)
    first = report.worst(1)[0]
    assert (first.native, first.is_fault) == ("stored b.weight", True)


def test_a_fault_that_no_output_shows_is_found():
    model, args, converted = case("norm")
    node = next(n for n in converted.rewritten.graph.nodes if n.name == "linear")
    plant(converted, node)
    report = amprewrite.verify(model, converted, args)
    assert report.error < 1e-2
    assert report.worst(1)[0].op == "linear"
    assert not report.ok


def test_random_numbers_are_no_fault():
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 32)).train()
    args = (torch.randn(4, 8, 32),)
    converted = amprewrite.convert(model, args=args)
    report = amprewrite.verify(model, converted, args)
    assert not any(op.is_fault for op in report.ops)


def test_ops_are_ranked_by_their_effect_on_the_outputs():
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    parts = [part for layer in layers for part in (layer, nn.ReLU())][:-1]
    model, args = nn.Sequential(*parts).eval(), (torch.randn(64, 64),)

    def verified(*denied):
        rules = [{"op_name": name, "class": "deny"} for name in denied]
        converted = amprewrite.convert(model, args=args, overrides=rules)
        return amprewrite.verify(model, converted, args)

    report = verified()
    linears = [op for op in report.ops if op.canonical == "linear"]
    left = {op.op: verified(op.op).error for op in linears}
    best = min(left, key=left.__getitem__)
    assert report.worst(1)[0].op == best
    largest = max(linears, key=lambda op: op.own).op
    assert left[largest] > left[best]
    assert sum(op.share or 0.0 for op in report.ops) == pytest.approx(1.0)

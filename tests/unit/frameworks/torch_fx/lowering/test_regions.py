"""Training of torch models with recomputed regions: the same bits, fewer tensors."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.lowering import regions

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Any) -> Any:
        n = self.norm(x)
        q, k = self.first(n), self.last(n)
        a = torch.softmax(q @ k.transpose(-1, -2), -1) @ n
        return x + self.last(self.drop(nn.functional.gelu(self.first(a))))


def a_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).train()


def an_input() -> Any:
    return torch.linspace(-1, 1, 4 * 64 * WIDTH).reshape(4, 64, WIDTH).sin()


def converted(**options: Any) -> Any:
    return amprewrite.convert(a_model(), args=(an_input(),), training=True, **options)


def gradients(model: Any, x: Any) -> list[Any]:
    torch.manual_seed(1)
    loss = model(x).square().mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def bytes_held(monkeypatch: Any, model: Any, x: Any) -> int:
    """Return the bytes of the tensors that stay alive for the backward pass."""
    kept: list[Any] = []

    class Watched(regions.Tape):
        def __init__(self, recipes: Any) -> None:
            super().__init__(recipes)
            self.saved: list[Any] = []
            kept.append(self)

        def pack(self, tensor: Any) -> Any:
            held = super().pack(tensor)
            self.saved.append(held)
            return held

    monkeypatch.setattr(regions, "Tape", Watched)
    found: list[Any] = []

    def keep(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(x).square().mean()
    for tape in kept:
        for held in tape.saved:
            roots = held.again.roots.values() if held.again else ()
            found += [held.tensor] if held.again is None else [r for r, _ in roots]
    given = {t.untyped_storage().data_ptr() for t in (x, *model.parameters())}
    sizes = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found
    }
    assert loss.requires_grad
    return sum(size for address, size in sizes.items() if address not in given)


def test_gradients_have_the_same_bits_from_fewer_tensors(monkeypatch: Any) -> None:
    plain, again, x = converted(), converted(recompute=True), an_input()
    assert again.plan.recompute
    pairs = zip(gradients(plain, x), gradients(again, x), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    less = bytes_held(monkeypatch, again, x)
    assert less < 0.7 * bytes_held(monkeypatch, plain, x)


def test_a_graph_is_read_twice_and_differentiated_twice() -> None:
    plain, again, x = converted(), converted(recompute=True), an_input()
    found: list[Any] = []
    for model in (plain, again):
        torch.manual_seed(1)
        weights = list(model.parameters())
        loss = model(x).square().mean()
        first = torch.autograd.grad(loss, weights, create_graph=True)
        squares: Any = sum(g.square().sum() for g in first)
        second = torch.autograd.grad(squares, weights, retain_graph=True)
        once_more = torch.autograd.grad(loss, weights)
        assert all(map(torch.equal, first, once_more))
        found.append((first, second))
    for one, two in zip(*found, strict=True):
        assert all(map(torch.equal, one, two))


def test_a_weight_that_changed_is_refused() -> None:
    model, x = converted(recompute=True), an_input()
    loss = model(x).square().mean()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    with pytest.raises(RuntimeError, match="changed in place after the forward pass"):
        loss.backward()


def test_inference_copies_and_pickles_give_the_same() -> None:
    model, x = converted(recompute=True), an_input()
    want = gradients(model, x)
    with torch.no_grad():
        torch.manual_seed(1)
        value = model(x)
    torch.manual_seed(1)
    assert torch.equal(value, model(x))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # our own
        pairs = zip(want, gradients(other, x), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)


def test_transforms_of_functions_apply() -> None:
    model, x = converted(recompute=True), an_input()
    weights = dict(model.named_parameters())

    def loss(weights: Any) -> Any:
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    torch.manual_seed(1)
    found = torch.func.grad(loss)(weights)
    pairs = zip(found.values(), gradients(model, x), strict=True)
    assert all(torch.allclose(one, two, rtol=1e-2, atol=1e-4) for one, two in pairs)


def test_compilers_and_export_get_the_program_without_hooks() -> None:
    again, x = converted(recompute=True), an_input()
    want = gradients(again, x)
    compiled = torch.compile(again, backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    loss = compiled(x).square().mean()
    found = torch.autograd.grad(loss, list(again.parameters()))
    assert all(
        torch.allclose(one, two, rtol=1e-2, atol=1e-3)
        for one, two in zip(want, found, strict=True)
    )
    exported = torch.export.export(again, (x,)).module()
    assert all("note" not in str(node.target) for node in exported.graph.nodes)


def test_a_model_without_arguments_has_regions_at_its_first_call() -> None:
    model, x = amprewrite.convert(a_model(), training=True, recompute=True), an_input()
    want = gradients(converted(), x)
    assert all(map(torch.equal, want, gradients(model, x)))
    assert model.plan.recompute
    model.eval()(x)
    assert model.plan.recompute

"""Low copies of weights: one for all graphs, for as long as a weight lives."""

import gc

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.module.weight_copies import (
    COPIES,
    LowWeights,
    WeightCopies,
)

LOW = torch.bfloat16


def test_a_copy_is_kept_for_each_weight_and_dtype():
    copies, weight = WeightCopies(), torch.randn(4, 4)
    low = copies.of(weight, LOW).low
    assert low.dtype == LOW
    assert copies.of(weight, LOW).low is low
    assert copies.of(weight, torch.float16).low.dtype == torch.float16
    assert len(copies) == 2


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.add_(1),
        lambda weight: setattr(weight, "data", torch.zeros(4, 4)),
    ],
)
def test_a_copy_is_made_again_after_a_write_that_torch_counts(write):
    copies, weight = WeightCopies(), torch.randn(4, 4)
    copies.of(weight, LOW)
    write(weight)
    assert torch.equal(copies.of(weight, LOW).low, weight.to(LOW))


def test_a_copy_goes_with_the_memory_of_its_weight():
    copies, weight = WeightCopies(), torch.randn(4, 4)
    copies.of(weight, LOW)
    torch.utils.swap_tensors(weight, torch.randn(4, 4))
    gc.collect()
    assert len(copies) == 0
    copies.of(weight, LOW)
    view = weight[0]
    del weight
    gc.collect()
    assert len(copies) == 1
    del view
    gc.collect()
    assert len(copies) == 0


def test_a_copy_stays_when_memory_that_its_weight_had_before_goes():
    copies, weight = WeightCopies(), torch.randn(4, 4)
    before, view = copies.of(weight, LOW), weight.detach()
    weight.data = torch.randn(4, 4)
    now = copies.of(weight, LOW)
    assert now is not before
    del view
    gc.collect()
    assert before.memory() is None
    assert copies.of(weight, LOW) is now


def test_graphs_share_the_copies_of_a_weight():
    model = nn.Linear(4, 4)
    one, two = (LowWeights({0: LOW}, None, model) for _ in range(2))
    with torch.no_grad():
        (low,) = one.lowered([model.weight])
        assert two.lowered([model.weight])[0] is low


def test_a_write_that_torch_does_not_count_is_seen_by_every_graph():
    for model, owner in [(nn.Linear(4, 4), True), (nn.Linear(4, 4), False)]:
        graphs = [LowWeights({0: LOW}, None, model if owner else None)] * 2
        with torch.no_grad():
            for graph in graphs:
                graph.lowered([model.weight])
            model.weight.data.mul_(3)
            for graph in graphs:
                (low,) = graph.lowered([model.weight])
                assert torch.equal(low, model.weight.to(LOW))


def test_a_graph_that_two_models_run_compares_the_weights_of_both():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    graph = LowWeights({0: LOW}, None, one)
    with torch.no_grad():
        graph.lowered([one.weight])
        graph.lowered([two.weight])
        one.weight.data.mul_(3)
        assert torch.equal(graph.lowered([one.weight])[0], one.weight.to(LOW))


def test_a_graph_keeps_no_memory_alive():
    model, before = nn.Linear(4, 4), len(COPIES)
    graph = LowWeights({0: LOW}, None, model)
    with torch.no_grad():
        graph.lowered([model.weight])
    assert len(COPIES) == before + 1
    storage = torch.multiprocessing.reductions.StorageWeakRef(
        model.weight.untyped_storage()
    )
    del model
    gc.collect()
    assert storage.expired()
    assert len(COPIES) == before


def test_a_graph_whose_model_is_gone_still_follows_its_weights():
    model = nn.Linear(4, 4)
    weight, graph = model.weight, LowWeights({0: LOW}, None, model)
    del model
    gc.collect()
    with torch.no_grad():
        graph.lowered([weight])
        weight.data.mul_(3)
        assert torch.equal(graph.lowered([weight])[0], weight.to(LOW))


def test_trained_weights_have_no_copy():
    trained, model, before = False, nn.Linear(4, 4), len(COPIES)
    graph = LowWeights({0: LOW}, lambda: trained, model)
    (low,) = graph.lowered([model.weight])
    low.sum().backward()
    assert torch.equal(model.weight.grad, torch.ones(4, 4))
    trained = True
    (low,) = graph.lowered([model.weight])
    assert torch.equal(low, model.weight.to(LOW))
    assert len(COPIES) == before


def test_a_tensor_with_the_values_of_a_weight_is_its_copy_until_a_write():
    copies, weight = WeightCopies(), torch.randn(4, 4).to(LOW).float()
    low = weight.to(LOW)
    copies.share(weight, low)
    assert copies.of(weight, LOW).low is low
    weight.add_(1)
    assert torch.equal(copies.of(weight, LOW).low, weight.to(LOW))
    del weight
    gc.collect()
    assert len(copies) == 0

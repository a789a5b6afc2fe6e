"""Modules of NNX and their converted twins: what is set on one side."""

import gc

import pytest

pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

from amprewrite.frameworks.jaxpr.modules.nnx import Twins, parts, rebuilt


class Holder(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(0))])
        self.both = self.layers[0]
        self.table = {"name": "holder"}
        self.rate = 0.5


def twin(model):
    twins, memo = Twins(), {}
    made = rebuilt(model, lambda m: object.__new__(type(m)), memo)
    for module in parts(model):
        twins.add(memo[id(module)], module)
    return twins, made


def test_parts_are_each_module_once() -> None:
    model = Holder()
    assert {id(p) for p in parts(model)} == {
        id(model),
        id(model.layers),
        id(model.both),
    }


def test_what_is_rebuilt_shares_variables_and_what_is_shared() -> None:
    model = Holder()
    _, made = twin(model)
    assert made is not model
    assert made.both is made.layers[0] is not model.both
    assert made.both.kernel is model.both.kernel
    assert made.table is model.table
    assert rebuilt(model, lambda _: None, {}) is model


def test_a_plain_attribute_is_written_through_and_followed() -> None:
    model = Holder()
    twins, made = twin(model)
    assert twins.same(made) is model
    made.rate = 0.1
    assert twins.same(made) is None
    twins.write(made, "rate", 0.1)
    twins.write(made, "table", {})  # is no plain attribute
    assert model.rate == 0.1
    assert model.table
    assert twins.same(made) is model
    model.rate = 0.2
    model.new = "new"
    twins.follow(made, lambda part: part)
    assert (made.rate, made.new) == (0.2, "new")
    del model.new
    twins.follow(made, lambda part: part)
    assert not hasattr(made, "new")


def test_an_original_that_is_gone_is_forgotten() -> None:
    twins, made = twin(Holder())
    gc.collect()
    assert twins.original(made) is None
    assert twins.same(made) is None
    del made
    gc.collect()
    assert not twins.by_id

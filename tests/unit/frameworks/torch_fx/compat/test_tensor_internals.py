"""Extents, storages and versions of tensors; fake tensors."""

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals


def fake(value: Any) -> Any:
    return tensor_internals.faked(tensor_internals.fake_mode(), value, value.dtype)


def test_the_fake_mode_of_values_is_found() -> None:
    value = fake(torch.ones(4))
    assert tensor_internals.fake_mode_of([1, value]) is value.fake_mode
    assert tensor_internals.fake_mode_of([1, torch.ones(4)]) is None


def test_fake_tensors_are_given_another_dtype() -> None:
    value = fake(torch.randn(4, 8).t())
    low: Any = tensor_internals.retyped(value, torch.bfloat16)
    wanted = (torch.bfloat16, value.shape, value.stride())
    assert (low.dtype, low.shape, low.stride()) == wanted
    assert low.fake_mode is value.fake_mode


def test_fake_and_true_tensors_meet_in_a_mode() -> None:
    mode = tensor_internals.fake_mode()
    value = tensor_internals.faked(mode, torch.ones(4, 8), torch.bfloat16)
    with mode:
        made: Any = value @ torch.ones(8, 2, dtype=torch.bfloat16)
    assert (made.fake_mode, made.dtype, made.shape) == (mode, torch.bfloat16, (4, 2))


def test_the_source_of_a_fake_tensor_is_found() -> None:
    value, mode = torch.ones(4), tensor_internals.fake_mode()
    made: Any = mode.from_tensor(value)
    assert tensor_internals.source_of(made) is value
    assert tensor_internals.source_of(made + 1) is None
    assert tensor_internals.source_of(value) is None


def test_symbolic_extents_are_found_and_have_the_value_of_the_example() -> None:
    found: list[Any] = []

    class Model(torch.nn.Module):
        def forward(self, *values: Any) -> Any:
            found.extend(values)
            return values

    given = (torch.zeros(3, 4), torch.ones(3, dtype=torch.long), torch.zeros(2) > 0)
    rows = {0: torch.export.Dim("rows")}
    torch.export.export(Model(), given, dynamic_shapes=((rows, rows, None),))
    values = found[: len(given)]
    assert [tensor_internals.varying(value) for value in values] == [[0], [0], []]
    made = [tensor_internals.stand_in(value) for value in values]
    assert [tuple(one.shape) for one in made] == [(3, 4), (3,), (2,)]
    assert [one.dtype for one in made] == [one.dtype for one in given]
    assert [one.tolist()[-1] for one in made] == [[1.0] * 4, 0, True]


def test_shapes_are_read_with_their_symbols() -> None:
    assert tensor_internals.extents(torch.randn(4, 8)) == (4, 8)


def test_storages_are_told_apart() -> None:
    value = torch.randn(4, 8)
    same = tensor_internals.storage_identity(value.view(-1))
    assert tensor_internals.storage_identity(value) == same
    assert tensor_internals.storage_identity(value.clone()) != same
    with pytest.raises((NotImplementedError, RuntimeError)):
        tensor_internals.storage_identity(torch.eye(2).to_sparse())


def test_the_key_of_a_storage_is_that_of_its_views_alone() -> None:
    value = torch.randn(4, 8)
    key = tensor_internals.storage_key(value)
    assert tensor_internals.storage_key(value.view(-1)[1:]) == key
    assert tensor_internals.storage_key(value.clone()) != key
    del value
    again = torch.randn(4, 8)  # often at the same address
    assert tensor_internals.storage_key(again) != key


def test_writes_are_counted() -> None:
    value = torch.randn(4, 8)
    before = tensor_internals.writes(value)
    value.view(-1).add_(1)
    assert tensor_internals.writes(value) == before + 1


def test_an_example_of_a_symbolic_number_is_that_of_the_tracer() -> None:
    found: list[Any] = []

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            found.append(tensor_internals.example_of(x.shape[0]))
            found.append(tensor_internals.example_of(x.sum().long().item()))
            return x

    rows = {0: torch.export.Dim("rows")}
    torch.export.export(Model(), (torch.zeros(3, 4),), dynamic_shapes=(rows,))
    assert found[:2] == [3, 2]
    assert tensor_internals.example_of("x") == "x"


def test_values_that_may_share_their_storage() -> None:
    x = torch.ones(4)
    assert tensor_internals.may_share_storage(x, x[1:])
    assert not tensor_internals.may_share_storage(x, x + 1)
    assert tensor_internals.may_share_storage(x, [x + 1])
    assert tensor_internals.may_share_storage(x, x.to_sparse())


def test_tensors_of_other_layouts_and_classes_are_not_dense() -> None:
    x = torch.ones(2, 3)
    assert tensor_internals.is_dense(x)
    assert tensor_internals.is_dense(torch.nn.Parameter(x))
    jagged = torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
    assert not tensor_internals.is_dense(jagged)
    assert not tensor_internals.is_dense(x.to_sparse())


def test_writes_are_counted_for_plain_tensors() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    assert tensor_internals.counts_writes(torch.ones(2))
    assert tensor_internals.counts_writes(torch.nn.Parameter(torch.ones(2)))
    assert not tensor_internals.counts_writes(inference)
    assert not tensor_internals.counts_writes(torch.ones(2).to_sparse())


def test_values_are_read_outside_of_tracers_and_transforms() -> None:
    x = torch.ones(2)
    assert tensor_internals.reads_values()
    assert tensor_internals.has_own_values(x)
    assert not tensor_internals.has_own_values(fake(x))
    with tensor_internals.fake_mode():
        assert not tensor_internals.reads_values()
    found: list[bool] = []
    torch.vmap(lambda y: found.append(tensor_internals.has_own_values(x)) or y)(x)
    assert found == [False]


def test_a_number_is_read_from_plain_tensors_alone() -> None:
    x, read = torch.ones(2, 2), list[bool]()
    assert tensor_internals.is_readable(x)
    assert not tensor_internals.is_readable(x.to_sparse())
    assert not tensor_internals.is_readable(x.to("meta"))

    def noted(x: Any) -> Any:
        read.append(tensor_internals.is_readable(x))
        return x

    torch.func.vmap(noted)(x)
    assert read == [False]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_trace_of_torchscript_is_known() -> None:
    seen = list[bool]()

    def run(value: Any) -> Any:
        seen.append(tensor_internals.is_torchscript())
        return value + 1

    run(torch.ones(2))
    torch.jit.trace(run, (torch.ones(2),), check_trace=False)
    assert seen == [False, True]


def test_a_transformed_tensor_has_a_sample_of_the_shape_that_is_seen_inside() -> None:
    value = torch.arange(24.0).reshape(2, 3, 4)
    found: list[Any] = []

    def look(x: Any) -> Any:
        assert tensor_internals.is_transformed(x)
        with operators.outside_transforms():
            found.append((x.shape, tensor_internals.sample_of(x)))
        return x.sum()

    torch.func.vmap(torch.func.vmap(torch.func.grad(look), in_dims=1))(value)
    shape, sample = found[0]
    assert shape == (3,)
    assert torch.equal(sample, value[0, :, 0])
    assert not tensor_internals.is_transformed(sample)
    assert tensor_internals.sample_of(sample) is sample


def test_kernels_of_fake_tensors_take_symbolic_extents() -> None:
    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        nodes = module.graph.find_nodes(op="placeholder")
        found.extend(node.meta["example_value"] for node in nodes)
        return module.forward

    torch.compile(lambda x: x * 2, backend=backend, dynamic=True)(torch.ones(2, 3, 3))
    x = next(value for value in found if isinstance(value, torch.Tensor))
    assert tensor_internals.varying(x)
    with tensor_internals.fake_mode_of([x]), tensor_internals.symbolic_kernels():
        assert torch.baddbmm(x.new_zeros(1), x, x).shape[1] == x.shape[1]


class Other(torch.Tensor):
    """A class without anything of its own."""


def test_a_tensor_takes_the_contents_of_another_and_stays_the_same_object() -> None:
    parameter, mark = torch.nn.Parameter(torch.ones(2, 3)), object()
    vars(parameter)["mark"] = mark
    name, values = id(parameter), torch.zeros(2, 3)
    tensor_internals.exchange(parameter, values, Other)
    assert (id(parameter), type(parameter)) == (name, Other)
    assert vars(parameter)["mark"] is mark
    assert not parameter.requires_grad
    assert torch.equal(parameter.as_subclass(torch.Tensor), torch.zeros(2, 3))
    tensor_internals.set_writes(values, 7)
    assert tensor_internals.writes(values) == 7


def test_a_tensor_without_memory_has_the_rest_and_no_values() -> None:
    like = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16))
    made = tensor_internals.without_memory(like)
    assert (made.shape, made.stride(), made.dtype) == (like.shape, (2, 1), like.dtype)
    assert made.requires_grad
    with pytest.raises(RuntimeError, match="has no memory"):
        made.sum()


def test_other_holders_of_a_tensor_or_its_memory_are_seen() -> None:
    held = torch.nn.Parameter(torch.ones(3))
    assert not tensor_internals.is_held_elsewhere(held)
    view = held.detach()
    assert tensor_internals.is_held_elsewhere(held)
    del view
    array = held.detach().numpy()
    assert tensor_internals.is_held_elsewhere(held)
    del array
    loss = (held * held).sum()
    assert tensor_internals.is_held_elsewhere(held)
    del loss
    assert not tensor_internals.is_held_elsewhere(held)


def test_hooks_on_gradients_are_seen() -> None:
    held = torch.nn.Parameter(torch.ones(3))
    assert not tensor_internals.has_hooks(held)
    one = held.register_hook(lambda grad: grad)
    assert tensor_internals.has_hooks(held)
    one.remove()
    assert not tensor_internals.has_hooks(held)
    held.register_post_accumulate_grad_hook(lambda _: None)
    assert tensor_internals.has_hooks(held)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_the_tracer_of_torchscript_is_known_by_its_module() -> None:
    seen: list[bool] = []

    class Weight(torch.Tensor):
        def __hash__(self) -> int:
            seen.append(tensor_internals.is_torchscript_reading())
            return id(self)

    model: Any = torch.nn.Linear(2, 2)
    tensor_internals.exchange(model.weight, torch.ones(2, 2), Weight)
    vars(model.weight)["_is_param"] = True
    assert {model.weight}
    assert seen == [False]
    torch.jit.trace(model, torch.ones(1, 2))
    assert True in seen


def test_tensors_without_values_are_told_from_others() -> None:
    plain, meta = torch.ones(2), torch.ones(2, device="meta")
    for stand_in, is_fake in ((fake(plain), True), (meta, False)):
        assert tensor_internals.has_no_values(stand_in)
        assert not tensor_internals.has_values(stand_in)
        assert tensor_internals.is_fake(stand_in) == is_fake
    assert tensor_internals.has_values(plain)
    assert not tensor_internals.has_values(None)


def test_a_fake_tensor_takes_the_content_of_a_true_one() -> None:
    tensor, value = fake(torch.ones(2)), torch.tensor([3.0, 4.0])
    seen = weakref.ref(tensor)
    tensor_internals.take_content(tensor, value)
    assert type(tensor) is torch.Tensor
    assert (tensor * 2).tolist() == [6.0, 8.0]
    assert seen() is tensor
    assert tensor_internals.is_fake(value)


def test_memory_and_a_tensor_in_it_have_one_identity() -> None:
    x = torch.ones(2)
    memory = tensor_internals.memory_identity(x.untyped_storage())
    assert memory == tensor_internals.storage_identity(x)
    assert memory != tensor_internals.storage_identity(torch.ones(2))


def test_the_number_of_writes_is_set() -> None:
    x = torch.ones(2)
    before = tensor_internals.writes(x)
    x.add_(1)
    assert tensor_internals.writes(x) == before + 1
    tensor_internals.set_writes(x, before)
    assert tensor_internals.writes(x) == before

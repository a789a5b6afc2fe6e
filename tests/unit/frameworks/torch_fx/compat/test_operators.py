"""Kinds and schemas of operators."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")


from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.compat.tracing import in_dispatch_mode

aten = torch.ops.aten


def test_kinds_of_operators_are_told_apart() -> None:
    assert operators.is_overload(aten.add.Tensor)
    assert not operators.is_overload(aten.add)
    region = torch.ops.higher_order.wrap_with_set_grad_enabled
    assert operators.is_higher_order(region)
    assert not operators.is_higher_order(aten.add.Tensor)


def test_schemas_are_read() -> None:
    names = [(f.name, f.kwarg_only) for f in operators.formals(aten.add.Tensor)]
    assert names == [("self", False), ("other", False), ("alpha", True)]
    assert operators.formals(aten.add.Tensor)[2].default_value == 1
    assert str(operators.formals(aten.add.Tensor)[2].type) == "number"
    assert operators.formals(len) == ()
    written = operators.formals(aten.add_.Tensor)[0]
    assert written.alias_info.is_write
    assert operators.is_mutable(aten.add_.Tensor)
    assert not operators.is_mutable(aten.add.Tensor)


def test_results_alias_says_what_a_schema_declares_to_be_a_view() -> None:
    aten = torch.ops.aten
    assert operators.results_alias(aten.reshape.default)
    assert operators.results_alias(aten.to.dtype)
    assert not operators.results_alias(aten.clone.default)
    assert not operators.results_alias(aten.add_.Tensor)


def test_a_transform_is_noticed() -> None:
    seen: list[bool] = []

    def function(x: Any) -> Any:
        seen.append(operators.in_transform())
        return x.sum()

    function(torch.ones(2))
    torch.func.grad(function)(torch.ones(2))
    assert seen == [False, True]


def test_the_builtin_of_an_overload_computes_the_same() -> None:
    op, x = torch.ops.aten.add.Tensor, torch.ones(2)
    assert torch.equal(operators.builtin_of(op)(x, x, alpha=2), op(x, x, alpha=2))


def test_python_bindings_have_the_name_of_the_op() -> None:
    names = [b.__name__ for b in operators.python_bindings(torch.ops.aten.add.Tensor)]
    assert names
    assert set(names) == {"add"}
    assert torch._C._nn.linear in operators.python_bindings(
        torch.ops.aten.linear.default
    )
    assert not operators.python_bindings(torch.ops.prims.add.default)


def test_pure_ops_do_nothing_but_compute() -> None:
    aten = torch.ops.aten
    assert operators.is_pure(aten.add.Tensor)
    for op in (aten.add_.Tensor, aten.rand.default, aten.dropout.default):
        assert not operators.is_pure(op)
    assert not operators.is_pure(aten._assert_async.msg)
    assert not operators.is_pure(torch.ops.prims.add.default)


def test_matrices_of_8_bits_are_multiplied():
    """Row-major times column-major, each with its scale."""
    left = torch.tensor([[1.0, 2.0], [0.5, -4.0]]).to(torch.float8_e5m2)
    right = torch.tensor([[3.0, 1.0], [0.25, 8.0]]).to(torch.float8_e4m3fn)
    half, three = torch.tensor(0.5), torch.tensor(3.0)
    found = operators.scaled_mm(left, right.t(), half, three)
    assert found.dtype == torch.float32
    assert torch.equal(found, left.float() @ right.float().t() * 1.5)


def test_a_part_of_a_transform_is_computed_outside_of_it() -> None:
    def look(x: Any) -> Any:
        assert operators.in_transform()
        with operators.outside_transforms():
            assert not operators.in_transform()
            assert torch.ones(2).sum().item() == 2
        assert operators.in_transform()
        return x * 2

    value = torch.ones(3)
    assert torch.equal(torch.func.vmap(look)(value), value * 2)


def test_forward_derivatives_are_seen_with_gradients_off() -> None:
    assert not operators.in_forward_derivatives()
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        assert operators.in_forward_derivatives()


def test_operators_for_kernels_of_onednn_are_found_by_name() -> None:
    assert operators.is_overload(operators.onednn("linear_pointwise").binary)
    with pytest.raises(AttributeError):
        operators.onednn("no_such_kernel")


def test_the_memory_of_a_tensor_of_onednn_is_read_where_it_is() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    plain = torch.arange(6.0)
    packed = plain.to_mkldnn()
    found = operators.onednn_memory(packed, plain.nbytes)
    assert torch.equal(found.view(torch.float32), plain)


def test_ops_that_draw_are_random() -> None:
    assert operators.is_random(aten.bernoulli.default)
    assert not operators.is_random(aten.add.Tensor)


def test_norms_write_to_statistics_unless_they_do_not_train() -> None:
    norm = aten.batch_norm.default
    rest = (0.1, 1e-5, False)
    given = ("x", "w", "b", "mean", "var")
    assert operators.written_statistics(norm, (*given, True, *rest), {}) == [
        *("mean", "var")
    ]
    assert operators.written_statistics(norm, (*given, False, *rest), {}) == []
    assert operators.written_statistics(norm, given, {"training": True}) != []
    none = ("x", "w", "b", None, None)
    assert operators.written_statistics(norm, (*none, True, *rest), {}) == []
    instance = aten.instance_norm.default
    assert operators.written_statistics(instance, (*given, True, *rest), {}) != []
    update = aten.batch_norm_update_stats.default
    assert operators.written_statistics(update, ("x", "mean", "var", 0.1), {}) != []
    still = aten._native_batch_norm_legit_no_training.default
    assert operators.written_statistics(still, (*given, 0.1, 1e-5), {}) == []
    assert operators.written_statistics(aten.add.Tensor, ("x", "y"), {}) == []


class Seeing(operators.Transparent):
    """Counts ops."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        Seeing.count += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_that_only_sees_is_no_other_program() -> None:
    with Seeing() as mode:
        assert operators.dispatch_modes() == [mode]
        assert not in_dispatch_mode()
        assert Seeing.ignore_compile_internals()
        before = Seeing.count
        with operators.without_modes():
            torch.ones(2).add_(1)
        assert Seeing.count == before
        torch.ones(2).add_(1)
        assert Seeing.count > before
    assert operators.dispatch_modes() == []


def test_a_plain_tensor_is_made_of_itself() -> None:
    x = torch.ones(2)
    assert operators.inner_tensors(x) == [x]


def test_a_tensor_of_two_is_made_of_these() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.ones(2), torch.zeros(2)
    found = operators.inner_tensors(TwoTensor(a, b))
    assert [t is s for t, s in zip(found, (a, b), strict=True)] == [True, True]

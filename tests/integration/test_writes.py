"""Writes in place, through views and chains of views, reach all who read the storage.

The numbers are small integers, which bfloat16 and float16 hold without rounding, so
that a converted program gives what the model gives, bit by bit.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree

pytestmark = pytest.mark.filterwarnings(
    "ignore:rewritten 0 of:amprewrite.errors.AmpWarning",
    "ignore:float16 on a CPU:amprewrite.errors.AmpWarning",
)

ROWS, WIDTH = 64, 256
"""So large that placement ``optimal`` computes contractions in low precision."""

Forward = Callable[[Any, Any], Any]
PROGRAMS: dict[str, Forward] = {}


class Exact(nn.Module):
    """Two linears of small integers, a buffer, and a function of them."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("held", torch.zeros(ROWS, WIDTH))
        with torch.no_grad():
            for parameter in self.parameters():
                signs = torch.randint(-1, 2, parameter.shape).float()
                parameter.copy_(signs * (torch.rand(parameter.shape) < 4 / WIDTH))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def program(function: Forward) -> Forward:
    PROGRAMS[function.__name__] = function
    return function


@program
def a_row_is_zeroed(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0].zero_()
    return h


@program
def a_slice_is_set(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[:, :4] = x[:, :4]
    return h


@program
def a_slice_is_added_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[:, :4] += x[:, :4]
    return h


@program
def a_copy_by_casts_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x).double().to(x.dtype)
    h[0].zero_()
    h.mul_(2.0)
    return m.b(h), h


@program
def what_a_dropout_hands_back_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    kept = nn.functional.dropout(h, 0.5, training=False)
    kept += x
    return h, kept, m.b(h)


@program
def what_expands_to_a_wider_one_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    rows = h.expand_as(x)
    rows[0].zero_()
    return h, rows


@program
def a_reshape_of_a_chunk_stays_a_copy(m: Any, x: Any) -> Any:
    h = m.a(x)
    left, _ = h.chunk(2, -1)
    flat = left.reshape(-1)
    h[0].zero_()
    return m.b(h), flat


@program
def a_narrow_view_is_copied_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.narrow(1, 0, 2).copy_(x[:, :2])
    return h


@program
def a_view_of_a_view_is_added_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.unsqueeze(0)[0, 1].add_(1.0)
    return h


@program
def a_view_is_returned_with_its_base(m: Any, x: Any) -> Any:
    h = m.a(x)
    w = h[1:3]
    w += x[1:3]
    return w, h


@program
def rows_are_multiplied_in_a_loop(m: Any, x: Any) -> Any:
    h = m.a(x)
    for q in range(4):
        h[q] = h[q] * x[q]
    return h


@program
def outputs_are_in_a_dict(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0] = 1
    return {"whole": h, "row": h[1]}


@program
def one_tensor_is_returned_twice(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0].mul_(2)
    return h, h


@program
def rows_are_put(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.index_put_((torch.tensor([0, 2]),), x[:2])
    return h


@program
def a_mask_chooses(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[x > 0] = 1.0
    h[1:].masked_fill_(x[1:] < 0, 3.0)
    return h


@program
def a_chain_of_views_is_returned(m: Any, x: Any) -> Any:
    h = m.a(x)
    a = h.view(2, -1, WIDTH)
    c = a[1].t()
    c[0].add_(2.0)
    return h, a, c


@program
def a_transpose_is_multiplied(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.t()[1:3].mul_(2.0)
    return h


@program
def a_diagonal_is_filled(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.diagonal().fill_(5.0)
    return h


@program
def a_permuted_view_is_subtracted_from(m: Any, x: Any) -> Any:
    h = m.a(x).view(2, -1, WIDTH)
    h.permute(2, 0, 1)[0].sub_(1.0)
    return h


@program
def a_strided_view_is_filled(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.as_strided((2, 2), (8, 1)).fill_(7.0)
    return h


@program
def parts_of_a_split_are_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    a, b = h[:, :4], h[:, 4:]
    a.add_(1.0)
    b.mul_(2.0)
    return h, a, b


@program
def a_detached_view_is_zeroed(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.detach()[0].zero_()
    return h


@program
def the_input_is_written_to(m: Any, x: Any) -> Any:
    v = x.view(2, -1, WIDTH)
    v[0].mul_(2.0)
    x[0].add_(1.0)
    return m.a(x), v


@program
def a_buffer_is_written_to_through_a_view(m: Any, x: Any) -> Any:
    m.held[1:].add_(m.a(x)[1:])
    return m.held * 2


@program
def a_buffer_is_copied_to_and_read(m: Any, x: Any) -> Any:
    m.held.copy_(m.a(x))
    m.held[0].zero_()
    return m.b(m.held)


@program
def a_value_is_cast_before_and_after_a_write(m: Any, x: Any) -> Any:
    h = m.a(x)
    v = h[1]
    one = m.b(h)
    v.add_(1.0)
    return one, m.b(h), v


@program
def an_activation_is_in_place(m: Any, x: Any) -> Any:
    h = m.a(x)
    torch.relu_(h[:2])
    nn.functional.relu(h, inplace=True)
    return h, h[1:]


@program
def a_sum_is_scaled(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0].add_(x[1], alpha=2)
    return h


@program
def a_product_is_added_in_place(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[:, :WIDTH].addmm_(x, m.b.weight)
    return h


@program
def zeros_are_filled(m: Any, x: Any) -> Any:
    h = m.a(x)
    o, p, q = torch.zeros(ROWS, WIDTH), torch.zeros_like(h), h.new_zeros(ROWS, WIDTH)
    o[:, :4] = h[:, :4]
    p[1] = h[0]
    q[:2] += h[:2]
    return o, m.b(p), q


@program
def a_clone_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    c = h.clone()
    c[0] = 0
    return h, c


@program
def a_reshape_that_copies_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    a = h[:, :4].reshape(-1)
    a.add_(1.0)
    return h, a


@program
def a_reshape_that_views_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.reshape(-1)[3] = 9.0
    h.contiguous()[0] = 2.0
    return h


@program
def a_reshape_of_what_is_cast_is_written_to(m: Any, x: Any) -> Any:
    a = m.a(x)[:, :4]
    y = a.exp().sum() * 0 + a
    z = a.reshape(-1)
    z.add_(1.0)
    return a * 2, y, z


@program
def a_contiguous_copy_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    a = h.t().contiguous()
    a[0] = 9.0
    return h, a


@program
def a_cast_that_does_nothing_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.float()[0] = 9.0
    return h


@program
def a_cast_to_the_low_dtype_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    b, c = h.to(torch.bfloat16), h.to(torch.float16)
    b.add_(1.0)
    c.add_(1.0)
    return h, b, c


@program
def what_was_cast_to_the_low_dtype_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    b, c, d = h.to(torch.bfloat16), h.to(torch.float16), h.double()
    h.add_(1.0)
    return h, b, c, d


@program
def a_cast_to_the_dtype_of_another_is_written_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    b = h.type_as(x)
    b.add_(1.0)
    return h, b


@program
def an_expanded_view_sees_a_write(m: Any, x: Any) -> Any:
    h = m.a(x)
    e = h[:1].expand(ROWS, WIDTH)
    h[0].add_(1.0)
    return e, h


@program
def dropout_that_is_off_is_a_view(m: Any, x: Any) -> Any:
    h = m.a(x)
    nn.functional.dropout(h, 0.5, training=False)[0] = 3.0
    return h


@program
def a_denied_op_stands_between(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0].zero_()
    p = h.softmax(-1) * 0
    h[1] += p[1]
    return h, m.b(h)


@program
def a_reduction_is_subtracted(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[1:].sub_(h[:1].sum(0))
    return h, h[0, :4].sum()


@program
def a_block_without_gradients_writes(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        h[0].zero_()
    return h, m.b(h)


@program
def a_block_without_gradients_makes_and_writes(m: Any, x: Any) -> Any:
    with torch.no_grad():
        h = m.a(x)
        h[0] = x[0] * x[0].sum()
    g = m.b(x)
    with torch.no_grad():
        g[0] += h[0, :4].sum()
    return h, g


@program
def a_weight_is_returned_as_a_view(m: Any, x: Any) -> Any:
    return m.a.weight[1:], m.a(x)


@program
def values_are_scattered(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.scatter_(1, torch.zeros(ROWS, 1, dtype=torch.long), 4.0)
    h.view(-1).index_add_(0, torch.tensor([3]), x[0, :1])
    h[:, ::2].index_fill_(0, torch.tensor([1]), 2.0)
    return h


@program
def rows_are_swapped(m: Any, x: Any) -> Any:
    h = m.a(x)
    t = h[0].clone()
    h[0] = h[1]
    h[1] = t
    return h


@program
def two_values_are_written_from_each_other(m: Any, x: Any) -> Any:
    h = m.a(x)
    g = m.b(h)
    g[0].copy_(h[0])
    h[0].copy_(g[1])
    return g, h


@program
def full_ops_write(m: Any, x: Any) -> Any:
    h = m.a(x)
    h[0].mul_(0).exp_()
    h[1].cumsum_(0)
    h[2].pow_(2)
    return h


@program
def a_view_sees_what_its_base_gets(m: Any, x: Any) -> Any:
    h = m.a(x)
    v = h.view(-1)
    h.copy_(torch.where(h > 0, h, x))
    h[1:].lerp_(x[1:], 1.0)
    return v


@program
def a_count_is_kept(m: Any, x: Any) -> Any:
    h = m.a(x)
    n = torch.zeros(1, dtype=torch.long)
    n += 1
    h[..., 2] = 0
    return [h * n, (n, h[0])]


ONLY_WITHOUT_GRADIENTS: dict[str, Forward] = {}


def no_grad(function: Forward) -> Forward:
    ONLY_WITHOUT_GRADIENTS[function.__name__] = function
    return function


@no_grad
def a_chunk_is_copied_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    a, b = h.chunk(2, 0)
    a.copy_(b)
    return h


@no_grad
def an_unbound_row_is_added_to(m: Any, x: Any) -> Any:
    h = m.a(x)
    r = h.unbind(0)
    r[2].add_(r[1])
    return h, r


@no_grad
def out_is_given(m: Any, x: Any) -> Any:
    h, o = m.a(x), torch.empty(ROWS, WIDTH)
    torch.mul(h, x, out=o)
    torch.mul(x[0], 2.0, out=h[1])
    o[0].zero_()
    torch.add(h, x, out=h)
    return o, h


@no_grad
def out_of_a_contraction_is_given(m: Any, x: Any) -> Any:
    h = m.a(x)
    torch.mm(x, m.b.weight, out=h)
    return h


def same_as_the_model(function: Forward, policy: str, **how: Any) -> None:
    model = Exact(function).train(bool(how.get("training")))
    x = torch.randint(-1, 2, (ROWS, WIDTH)).float()
    theirs = copy.deepcopy(model)
    ours = amprewrite.convert(model, policy, args=(x.clone(),), **how)
    one, two = x.clone(), x.clone()
    with torch.no_grad():
        wanted, found = theirs(one), ours(two)
    pairs = zip(pytree.tree_leaves(wanted), pytree.tree_leaves(found), strict=True)
    for want, have in (*pairs, (one, two), (theirs.held, ours.held)):
        torch.testing.assert_close(have, want, rtol=0, atol=0)


@pytest.mark.parametrize("placement", ["promote", "paint", "optimal"])
@pytest.mark.parametrize("name", [*PROGRAMS, *ONLY_WITHOUT_GRADIENTS])
def test_what_is_written_is_read(name: str, placement: str) -> None:
    function = (PROGRAMS | ONLY_WITHOUT_GRADIENTS)[name]
    same_as_the_model(function, "bf16", placement=placement, training=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_when_training_is_read(name: str) -> None:
    same_as_the_model(PROGRAMS[name], "bf16", training=True)


@pytest.mark.parametrize("policy", ["fp16", "autocast-cpu"])
@pytest.mark.parametrize("name", [*PROGRAMS, *ONLY_WITHOUT_GRADIENTS])
def test_what_is_written_under_other_policies_is_read(name: str, policy: str) -> None:
    function = (PROGRAMS | ONLY_WITHOUT_GRADIENTS)[name]
    same_as_the_model(function, policy, training=False)


@pytest.mark.parametrize("name", ONLY_WITHOUT_GRADIENTS)
def test_what_runs_without_gradients_alone_is_promoted(name: str) -> None:
    same_as_the_model(ONLY_WITHOUT_GRADIENTS[name], "promote")

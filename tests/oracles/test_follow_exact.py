"""Class follow means: a cast before is a cast after, to the last bit.

``cast(op(x)) == op(cast(x))`` for every value: normal, subnormal, zero of either sign,
infinite and NaN, those that overflow, underflow or round to even among them. The calls
are those that torch's samples of its operators make, with other values.
"""

import math
from collections import defaultdict
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from amprewrite import load_policy
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.compat import pytrees
from tests.oracles.opinfo import (
    Program,
    is_full,
    op_db,
    samples_of,
    torch_may_warn,
)

aten, pytree = torch.ops.aten, pytrees.pytree

FOLLOW = sorted(
    name for name, e in load_policy("bf16").ops.items() if e.op_class == "follow"
)

EITHER_ZERO = {
    *("clamp", "clamp_max", "clamp_min", "fmax", "fmin", "hardtanh", "max_pool1d"),
    *("maximum", "minimum", "relu", "relu6"),
}
"""Ops that choose between values by their order, which says nothing about two zeros.

-1e-30 is less than 0, and what it underflows to, -0, is not: relu gives 0 before the
cast and may give -0 after it.
"""

JAXS_OWN = (
    *("all_gather", "all_to_all", "device_put", "name", "optimization_barrier"),
    *("pcast", "pmax", "pmin", "ppermute", "pvary", "reduce_window_max"),
    *("reduce_window_min", "reshard", "sharding_constraint"),
)

NO_CALL = {
    "_pack_padded_sequence": "its lengths decide the shape of the result",
    "_pad_packed_sequence": "takes what _pack_padded_sequence gives",
    "to": "moves between devices",
    **dict.fromkeys(JAXS_OWN, "a primitive of JAX that torch does not have"),
}
"""Follow ops that are not tried here, and why."""

DRAWS = 30

SPECIAL = [
    *(0.0, 1.0, 0.5, math.inf, 1e-8, 1e-30, 1e-40, 1e-45, 2**-25, 3e-8, 6e-8, 6e-5),
    *(65504.0, 65519.0, 65520.0, 3.39e38, 3.3961775e38, 3.4028235e38),
    *(1.00390625, 1.0048828125, 1.01171875, 1.00048828125, 1.00146484375),
]


def values(shape, seed):
    """Numbers of every size: 1e-8 to 1e30, and those at which a cast does something."""
    g = torch.Generator().manual_seed(seed)
    sizes = 10 ** (torch.rand(shape, generator=g, dtype=torch.float64) * 38 - 8)
    special = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), shape, generator=g)]
    sign = torch.randint(2, shape, generator=g) * 2.0 - 1
    chosen = torch.where(torch.rand(shape, generator=g) < 0.5, special, sizes.float())
    nan = torch.rand(shape, generator=g) < 0.05
    return torch.where(nan, math.nan, chosen * sign)


class _Recorder(Interpreter):
    """Runs a program and notes the calls of follow ops."""

    def __init__(self, module, calls):
        super().__init__(module)
        self.calls = calls

    def run_node(self, n):
        if n.op == "call_function":
            name = ops.canonical_name(n)
            if name in FOLLOW:
                args = self.fetch_args_kwargs_from_env(n)
                leaves, spec = pytree.tree_flatten(args)
                key = (n.target, str([_form(leaf) for leaf in leaves]), str(spec))
                self.calls[name].setdefault(key, (n.target, _copied(leaves), spec))
        return super().run_node(n)


def _form(leaf):
    return (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf


def _copied(leaves):
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in leaves]


@cache
def sampled_calls():
    """Distinct calls of each follow op in the first samples of every operator."""
    calls = defaultdict(dict)
    for info in op_db():
        for sample in samples_of(info, 2):
            program = Program(info, sample)
            with torch_may_warn():
                try:  # the trace that torch.export makes, at half the cost
                    traced = make_fx(program, pre_dispatch=True)(*program.args)
                # It needs values, or a GPU; or torch_geometric is loaded, whose own
                # index_select refuses a number.
                except (AssertionError, IndexError, RuntimeError):
                    continue
                _Recorder(traced, calls).run(*program.args)
    for name, target, args in own_calls():
        leaves, spec = pytree.tree_flatten((args, {}))
        calls[name][target, "own"] = (target, leaves, spec)
    return {name: list(found.values()) for name, found in calls.items()}


def own_calls():
    """Calls that no sample makes in its first places."""
    line, plane = torch.ones(2, 3, 8), torch.ones(2, 3, 8, 8)
    space, matrix = torch.ones(1, 2, 4, 4, 4), torch.ones(5, 6)
    index = [torch.tensor([4, 0, 2]), torch.tensor([1, 5, 5])]
    yield "_pad_circular", aten._pad_circular.default, (line, (2, 1))
    yield "_pad_enum", aten._pad_enum.default, (line, (2, 1), 2)
    yield "_unsafe_index", aten._unsafe_index.Tensor, (matrix, index)
    yield (
        "_unsafe_index_put",
        aten._unsafe_index_put.default,
        (*(matrix, index, torch.ones(3)),),
    )
    yield "_unsafe_view", aten._unsafe_view.default, (matrix, (6, 5))
    for name, x in (("1d", line), ("2d", plane), ("3d", space)):
        size = [2 * n for n in x.shape[2:]]
        exact = f"_upsample_nearest_exact{name}"
        yield exact, getattr(aten, exact).default, (x, size)
        yield (
            f"upsample_nearest{name}",
            getattr(aten, f"upsample_nearest{name}").default,
            (x, size),
        )
        pad = [1, 2] * (x.ndim - 2)
        for kind in ("reflection_pad", "replication_pad"):
            yield kind + name, getattr(aten, kind + name).default, (x, pad)
    yield "adjoint", aten.adjoint.default, (matrix,)
    yield "contiguous", aten.contiguous.default, (matrix.mT,)
    yield "copy", aten.copy.default, (matrix, matrix)
    yield "fill_diagonal", aten.fill_diagonal_.default, (matrix, 3.5)
    yield "flatten_dense_tensors", aten.flatten_dense_tensors.default, ([line, matrix],)
    yield "lift", aten.lift.default, (matrix,)
    yield "lift_fresh", aten.lift_fresh.default, (matrix,)
    yield "moveaxis", aten.moveaxis.int, (line, 0, 2)
    yield (
        "native_channel_shuffle",
        aten.native_channel_shuffle.default,
        (*(torch.ones(2, 4, 3, 3), 2),),
    )
    yield "pad_sequence", aten.pad_sequence.default, ([line[0], line[1, :2]],)
    yield "swapaxes", aten.swapaxes.default, (line, 0, 2)
    yield "swapdims", aten.swapdims.default, (line, 0, 2)
    yield (
        "unflatten_dense_tensors",
        aten.unflatten_dense_tensors.default,
        (*(torch.ones(60), [line[0], matrix]),),
    )
    yield (
        "unsafe_split_with_sizes",
        aten.unsafe_split_with_sizes.default,
        (*(matrix, [2, 3]),),
    )
    many = torch.ones(64, 257)  # rows that are long enough for vector instructions
    yield "amax", aten.amax.default, (many, [1])
    yield "amin", aten.amin.default, (many, [1])
    yield "max_pool1d", aten.max_pool1d.default, (many, [5], [2])


def differences(target, leaves, spec, dtype):
    """Kinds of difference between a cast before and a cast after."""
    limits = torch.finfo(dtype)
    for seed in range(DRAWS):
        full, low = [], []
        for place, leaf in enumerate(leaves):
            if is_full(leaf):
                x = values(leaf.shape, 100 * seed + place)
                full.append(x)
                low.append(x.to(dtype))
            elif isinstance(leaf, float) and math.isfinite(leaf):
                full.append(leaf)  # a constant beyond the range is clamped when written
                low.append(min(max(leaf, limits.min), limits.max))
            else:
                pair = _copied([leaf, leaf])
                full.append(pair[0])
                low.append(pair[1])
        after, before = call(target, full, spec), call(target, low, spec)
        for x, y in zip(after, before, strict=True):
            yield from differences_of(x.to(dtype) if is_full(x) else x, y)


def call(target, leaves, spec):
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    with torch_may_warn():
        made = pytree.tree_leaves(target(*args, **kwargs))
    return [x for x in made if isinstance(x, torch.Tensor)]


def differences_of(x, y):
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        yield f"{y.dtype} {tuple(y.shape)} instead of {x.dtype} {tuple(x.shape)}"
    elif x.element_size() != 2:
        if not x.equal(y):
            yield f"other {x.dtype} values"
    else:
        bits = x.contiguous().view(torch.int16) != y.contiguous().view(torch.int16)
        other = bits & ~(x.isnan() & y.isnan())
        if (other & (x != y)).any():
            yield f"{y[other][:3].tolist()} instead of {x[other][:3].tolist()}"
        elif other.any():
            yield "sign of zero"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in FOLLOW if name not in NO_CALL])
def test_a_cast_before_is_a_cast_after(name, dtype):
    found, tried = set(), 0
    for target, leaves, spec in sampled_calls().get(name, ()):
        if any(is_full(leaf) for leaf in leaves):
            tried += 1
            found.update(differences(target, leaves, spec, getattr(torch, dtype)))
    assert tried, f"no call of {name}: give one in own_calls, or a reason in NO_CALL"
    allowed = {"sign of zero"} if name in EITHER_ZERO else set()
    assert found <= allowed


def test_exceptions_are_follow_ops():
    assert set(NO_CALL) <= set(FOLLOW)
    assert set(FOLLOW) >= EITHER_ZERO


@pytest.mark.parametrize("name", sorted(EITHER_ZERO))
def test_a_policy_says_that_either_zero_may_be_taken(name):
    assert "zero" in load_policy("bf16").ops[name].why


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.floor.default, ()),
        (aten.sign.default, ()),
        (aten.tanh.default, ()),
        (aten.mul.Scalar, (3.0,)),
        (aten.argmax.default, (1,)),
        (aten.eq.Scalar, (1.0,)),
    ],
)
def test_the_comparison_can_fail(target, args):
    leaves, spec = pytree.tree_flatten(((torch.ones(20, 20), *args), {}))
    assert set(differences(target, leaves, spec, torch.float16)) - {"sign of zero"}


def test_underflow_may_choose_the_other_zero():
    leaves, spec = pytree.tree_flatten(((torch.ones(50, 50),), {}))
    found = set(differences(aten.relu.default, leaves, spec, torch.float16))
    assert found == {"sign of zero"}

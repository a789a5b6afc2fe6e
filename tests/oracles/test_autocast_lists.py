"""The autocast policies against torch's own lists of what autocast does.

Two oracles: the calls with which torch tests autocast, whose result eager autocast
makes in the same dtype as our plan (live on CPU, and on CUDA where there is one); and
the dispatcher, which holds a kernel for every operator that is on a list of autocast.
"""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite import inspect, load_policy
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.ops import op_table
from amprewrite.policy.load import policy_folder
from tests.oracles.opinfo import LOW, RULES, op_db, torch_may_warn

op_db()  # makes torch's own tests importable

from torch.testing._internal.autocast_test_lists import (
    AutocastCPUTestLists,
    AutocastTestLists,
)

pytestmark = pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")

pytree = pytrees.pytree

HALF = (torch.bfloat16, torch.float16)

MODULES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg}

NOT_CALLED = {
    "cudnn_convolution": "on CUDA only",
    "cudnn_convolution_transpose": "on CUDA only",
    "einsum": "torch skips it as well: the shapes do not fit the equation",
    "equal": "gives a Python bool and decides by values",
}
"""Entries of torch's lists that are not tried, and why."""

OF_JAX = frozenset(
    ("igamma_grad_a", "psum", "psum_invariant", "ragged_dot", "random_gamma_grad")
) | {
    *("reduce_scatter", "reduce_window_sum", "regularized_incomplete_beta"),
    "select_and_scatter_add",
}
"""Ops of JAX alone: torch.autocast cannot have a word on them."""

EXCUSES = ("low kernel", "on the list", "cells")
"""Words in the reason of an op that is lowered or not though it is on no list."""

PROMOTING = ("promote", "follow")


class Call(nn.Module):
    """One call of torch's lists; what is half precision there arrives low here."""

    def __init__(self, function, args, kwargs):
        super().__init__()
        self.function = function
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))

    @property
    def args(self):
        """The tensors of the call, as a model holds them before it is converted."""
        tensors = [x for x in self.leaves if isinstance(x, torch.Tensor)]
        return tuple(x.float() if x.dtype in HALF else x for x in tensors)

    def forward(self, *tensors):
        given = iter(tensors)
        leaves = list(self.leaves)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                x = next(given)
                leaves[place] = torch.ops.amptest.low(x) if leaf.dtype in HALF else x
        return self._call(leaves)

    def _call(self, leaves):
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)

    def dtype_under_autocast(self, device):
        """Return the dtype that eager autocast gives the result."""
        leaves = [x.to(device) if hasattr(x, "to") else x for x in self.leaves]
        half = [hasattr(x, "dtype") and x.dtype in HALF for x in leaves]
        cast = zip(leaves, half, strict=True)
        leaves = [x.bfloat16() if is_half else x for x, is_half in cast]
        with torch_may_warn(), torch.autocast(device, torch.bfloat16):
            return first_dtype(self._call(leaves))


def first_dtype(result):
    return str(pytree.tree_leaves(result)[0].dtype).removeprefix("torch.")


def listed_calls(device):
    """Every call of torch's lists for a device type, by a unique name."""
    lists = (AutocastCPUTestLists if device == "cpu" else AutocastTestLists)("cpu")
    found = {}
    for group, rows in vars(lists).items():
        module = group.partition("_")[0]
        if module not in MODULES:
            continue  # methods: the same operators again; banned: see below
        for number, (name, args, *rest) in enumerate(rows):
            if name not in NOT_CALLED:
                kwargs = next((x for x in rest if isinstance(x, dict)), {})
                call = Call(getattr(MODULES[module], name), args, kwargs)
                found[f"{group}-{number}-{name}"] = call
    return found


CALLS = {device: listed_calls(device) for device in ("cpu", "cuda")}


def planned_dtype(device, call):
    """Return the dtype in which the plan makes the result of the call."""
    with torch_may_warn():
        plan = inspect(call, f"autocast-{device}", args=call.args, overrides=RULES)
    return next(d for d in reversed(plan.decisions) if d.native != LOW).results[0]


def registered(device):
    """Canonical names of the ops for which the dispatcher holds an autocast kernel."""
    key = f"Autocast{device.upper()}"
    names = (name for name in torch._C._dispatch_get_all_op_names())
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    packets = {
        name.removeprefix("aten::").partition(".")[0]
        for name in names
        if name.startswith("aten::") and has(name, key)
    }
    return {op_table().aten.get(packet, packet) for packet in packets}


@pytest.mark.parametrize(
    ("device", "name"),
    [(d, name) for d in CALLS for name in CALLS[d] if not name.endswith("convolution")],
)
def test_cpu_as_eager(device, name):
    """The calls of both lists; what convolutions are made of is on that for CUDA."""
    call = CALLS[device][name]
    try:
        wanted = call.dtype_under_autocast("cpu")
    except (NotImplementedError, RuntimeError) as error:
        assert device == "cuda"
        pytest.skip(f"eager autocast fails: {error}")
    assert planned_dtype("cpu", call) == wanted


@pytest.mark.parametrize("name", CALLS["cuda"])
def test_cuda_as_listed(name):
    group, _, _ = name.partition("-")
    wanted = "bfloat16" if group.endswith("fp16") else "float32"
    if "builtin" in group and name.rpartition("-")[2] in ("eq", "ge", "gt", "le", "lt"):
        wanted = "bool"
    if name.endswith("-ne"):
        wanted = "bool"
    assert planned_dtype("cuda", CALLS["cuda"][name]) == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS["cuda"])
def test_cuda_as_eager(name):
    call = CALLS["cuda"][name]
    assert planned_dtype("cuda", call) == call.dtype_under_autocast("cuda")


@pytest.mark.parametrize(
    ("device", "low"), [("cpu", "torch_16"), ("cuda", "torch_fp16")]
)
def test_the_lists_are_long(device, low):
    assert len(CALLS[device]) > (40 if device == "cpu" else 90)
    assert sum(name.startswith(low) for name in CALLS[device]) > 14


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_the_dispatcher_knows_the_policy_lists(device):
    policy = load_policy(f"autocast-{device}")
    names = registered(device)
    assert len(names) > 80
    internal = {"mkldnn_rnn_layer"}  # lstm and gru, after they were taken apart
    assert names - set(policy.ops) <= internal


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_the_dispatcher_does_not_know_runs_as_it_comes(device):
    names = registered(device)
    extra = {
        name: entry.why
        for name, entry in load_policy(f"autocast-{device}").ops.items()
        if entry.op_class not in (*PROMOTING, "keep")
        and name.removeprefix("aten::") not in names | OF_JAX
        and not any(excuse in entry.why for excuse in EXCUSES)
    }
    assert not extra


@pytest.mark.parametrize("name", ["cat", "stack", "index_copy"])
def test_promote_list_of_the_cpu(name):
    assert name in registered("cpu")
    assert load_policy("autocast-cpu").ops[name].op_class in PROMOTING


@pytest.mark.parametrize(
    "name",
    [
        *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler"),
        *("index_put", "scatter_add", "tensordot", "vdot"),
    ],
)
def test_promote_list_of_cuda(name):
    assert name in registered("cuda")
    assert load_policy("autocast-cuda").ops[name].op_class in PROMOTING


def test_what_cuda_bans_runs_as_it_comes():
    """Eager autocast refuses it; a model that is converted may have it."""
    policy = load_policy("autocast-cuda")
    assert policy.ops["binary_cross_entropy"].op_class == "promote"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_einsum(device):
    x = torch.ones(8, 8)
    call = Call(lambda a, b: torch.einsum("ij,jk->ik", a, b), (x, x), {})
    assert planned_dtype(device, call) == call.dtype_under_autocast("cpu") == "bfloat16"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_files_name_their_source(device):
    text = (policy_folder() / f"autocast-{device}.toml").read_text("utf-8")
    assert "# " in text
    assert "Source: ATen/autocast_mode.h" in text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_knows_no_demand(device):
    policy = load_policy(f"autocast-{device}")
    assert not policy.demand
    assert not policy.weak_parameters

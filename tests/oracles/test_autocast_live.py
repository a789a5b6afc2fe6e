"""The autocast policies against eager autocast, on every operator with samples.

Under fake tensors nothing is computed and no device is needed, but the dispatcher goes
the way of the device, through autocast: so the list for CUDA is tested without one.
"""

import pytest

torch = pytest.importorskip("torch")

from amprewrite import inspect
from amprewrite.frameworks.torch_fx.compat import pytrees
from tests.oracles.opinfo import (
    LOW,
    RULES,
    Program,
    export,
    fake_mode,
    is_full,
    name_of,
    op_db,
    samples_of,
    torch_may_warn,
)

pytestmark = pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")

pytree = pytrees.pytree

INFOS = [info for info in op_db() if torch.float32 in info.supported_dtypes("cpu")]

OTHERWISE = {
    "masked.": "passes its input's dtype as an argument, which the capture holds",
    "einsum": "its first sample contracts nothing, so it runs as no op of a list",
    "native_group_norm": "eager autocast knows only group_norm, of which it is a part",
    "nn.functional.linear_cross_entropy.chunked": "a custom operator, left as traced",
    "nn.functional.multi_head_attention_forward": "has several results",
    "pca_lowrank": "has several results, of different dtypes",
    "svd_lowrank": "has several results, of different dtypes",
}
"""Beginnings of names that are not compared, and why."""


def eager_dtype(program, device):
    """Return the dtype that eager autocast gives the first result; None if it fails."""
    halved = program.lowered == "all"
    with torch_may_warn(), fake_mode(), autocast(device):

        def enter(x):
            if not isinstance(x, torch.Tensor):
                return x
            dtype = torch.bfloat16 if halved and is_full(x) else x.dtype
            form = {"dtype": dtype, "device": device}
            return torch.empty_strided(x.size(), x.stride(), **form)

        try:
            leaves = [enter(x) for x in program.leaves]
            first, args, kwargs = pytree.tree_unflatten(leaves, program.spec)
            return first_dtype(program.op(first, *args, **kwargs))
        except Exception:  # noqa: BLE001  # what cannot be faked fails in many ways
            return None


class autocast:  # noqa: N801  # a context manager
    """torch.autocast, without asking whether there is a device."""

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        torch.set_autocast_enabled(self.device, True)
        torch.set_autocast_dtype(self.device, torch.bfloat16)

    def __exit__(self, *_):
        torch.set_autocast_enabled(self.device, False)
        torch.clear_autocast_cache()


def first_dtype(result):
    tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return str(tensors[0].dtype).removeprefix("torch.")


def chosen_otherwise(decision):
    """Whether we leave an op in full precision for a reason of our own."""
    kept = decision.op_class == "keep"  # random draws, factorisations, what is made
    alone = decision.reason == "contraction"  # an outer product
    return kept or alone or "low kernel" in decision.why


DEVICES = ("cpu", "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("info", INFOS, ids=name_of)
def test_result_is_made_in_the_dtype_of_eager_autocast(info):
    if name_of(info).startswith(tuple(OTHERWISE)):
        pytest.skip("compared in no useful way: see OTHERWISE")
    wrong = []
    for sample in samples_of(info, 1):
        for lowered in ("none", "all"):
            program = Program(info, sample, lowered)
            wanted = {device: eager_dtype(program, device) for device in DEVICES}
            exported = export(program) if any(wanted.values()) else None
            if exported is None:
                continue
            for device, dtype in wanted.items():
                ours = last_decision(exported, program, device) if dtype else None
                if ours is None or chosen_otherwise(ours):
                    continue
                if ours.results[0] != dtype:
                    wrong.append((device, lowered, ours.canonical, ours.results, dtype))
    assert not wrong


def last_decision(exported, program, device):
    """Return the decision on the last op that has results."""
    rules = RULES if program.lowered == "all" else ()
    plan = inspect(exported, f"autocast-{device}", args=program.args, overrides=rules)
    ours = [d for d in plan.decisions if d.native != LOW and d.results]
    return ours[-1] if ours else None


@pytest.mark.parametrize(
    ("device", "softmax"), [("cpu", "bfloat16"), ("cuda", "float32")]
)
def test_fake_tensors_go_through_autocast(device, softmax):
    with fake_mode(), autocast(device):
        product = torch.empty(2, 2, device=device) @ torch.empty(2, 2, device=device)
        assert first_dtype(product) == "bfloat16"
        assert first_dtype(product.softmax(0)) == softmax
        assert first_dtype(product.sin()) == "bfloat16"
    assert not torch.is_autocast_enabled(device)

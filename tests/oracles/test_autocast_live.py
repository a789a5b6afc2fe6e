"""The autocast policies against eager autocast, on every operator with samples.

Under fake tensors nothing is computed and no device is needed, but the dispatcher goes
the way of the device, through autocast: so the list for CUDA is tested without one.
"""

import pytest

torch = pytest.importorskip("torch")

from amprewrite import inspect  # noqa: E402  # after the check that torch is there
from amprewrite.frameworks.torch_fx import _compat  # noqa: E402
from tests.oracles.opinfo import (  # noqa: E402
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

pytree = _compat.pytree

INFOS = [info for info in op_db() if torch.float32 in info.supported_dtypes("cpu")]

OTHERWISE = {
    "masked.": "passes its input's dtype as an argument, which the capture holds",
    "svd_lowrank": "has several results, of different dtypes",
    "pca_lowrank": "has several results, of different dtypes",
}
"""Beginnings of names that are not compared, and why."""


def eager_dtype(program, device):
    """Return the dtype that eager autocast gives the last result; None if it fails."""
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
            return last_dtype(program.op(first, *args, **kwargs))
        except Exception as e:  # noqa: BLE001  # what cannot be faked fails in many ways
            import os
            if 'DBG' in os.environ: print('EXC',device,program.op_name,str(e)[:100].replace(chr(10),' '))
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


def last_dtype(result):
    tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return str(tensors[-1].dtype).removeprefix("torch.")

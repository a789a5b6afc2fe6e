"""A group of one process, for tests of what several do."""

from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.distributed_c10d import HashStore


@contextmanager
def group_of_one():
    """Let this process be all there is; leave no group behind."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()

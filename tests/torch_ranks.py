"""What two processes find, to be run by torchrun; the first prints it as JSON."""

import json
import os
import warnings
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import amprewrite
from amprewrite.errors import LossScaleError
from amprewrite.training.torch import GradScaler, LowWeights

SCALE = 2.0**10


def network() -> Any:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1)
    return nn.Sequential(*layers).train()


def converted(policy: str = "fp16") -> Any:
    return amprewrite.convert(network(), policy, args=(mine()[0],))


def sharded(*ignored: str, policy: str = "fp16") -> Any:
    model = converted(policy)
    return fully_shard(model, ignored_params=set(map(model.get_parameter, ignored)))


def whole() -> tuple[Any, Any]:
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(16, 8, generator=draws)
    return x, x.sum(1, keepdim=True).tanh()


def mine() -> list[Any]:
    """Return the rows of this process."""
    return [x.chunk(dist.get_world_size())[dist.get_rank()] for x in whole()]


def loss_of(model: Any) -> Any:
    x, y = mine()
    return mse_loss(model(x), y)


def local(tensor: Any) -> Any:
    return getattr(tensor.detach(), "_local_tensor", tensor.detach())


def dtypes_reduced_by_ddp() -> Any:
    found: list[str] = []

    def hook(state, bucket):  # torch refuses other annotations than its own
        found.append(str(bucket.buffer().dtype))
        return allreduce_hook(state, bucket)

    model = DistributedDataParallel(converted())
    model.register_comm_hook(None, hook)
    loss_of(model).backward()
    return found


class Collectives(TorchDispatchMode):
    """Notes the dtypes of what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        if func.namespace == "c10d":
            dtype = next(x.dtype for x in args if isinstance(x, torch.Tensor))
            self.found.append(f"{func.overloadpacket.__name__} {dtype}")
        return func(*args, **(kwargs or {}))


def dtypes_sent_by_fully_shard() -> Any:
    model = sharded()
    with Collectives() as seen:
        loss_of(model).backward()
    return seen.found


def step(model: Any, *, spoil: Any, fused: bool = False) -> Any:
    """Return the scale after a spoiled step, and whether nothing here has changed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = GradScaler("cpu", init_scale=SCALE)
    scaler.scale(loss_of(model)).backward()
    if dist.get_rank() == 1:
        spoil(model)
    before = [local(p).clone() for p in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    pairs = zip(before, model.parameters(), strict=True)
    return scaler.get_scale(), all(torch.equal(old, local(p)) for old, p in pairs)


def infinity(name: str) -> Any:
    """Return what puts an infinity into one element of a gradient of this process."""

    def spoil(model: Any) -> None:
        local(model.get_parameter(name).grad)[0] = torch.inf

    return spoil


def nothing(_: object) -> None:
    pass


def skipped_steps() -> Any:
    first, last = "0.weight", "3.bias"
    return {
        "finite": step(sharded(), spoil=nothing),
        "sharded": step(sharded(), spoil=infinity(first)),
        "fused": step(sharded(), spoil=infinity(first), fused=True),
        "the first is whole": step(sharded(first), spoil=infinity("0.bias")),
        "the last is whole": step(sharded(last), spoil=infinity(last)),
    }


def skipped_step_of_ddp() -> Any:
    model = DistributedDataParallel(converted())
    before = [local(p).clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=SCALE)
    x, y = mine()
    x = x * torch.inf if dist.get_rank() == 1 else x
    scaler.scale(mse_loss(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    pairs = zip(before, model.parameters(), strict=True)
    return scaler.get_scale(), all(torch.equal(old, p) for old, p in pairs)


def skipped_steps_by_first_placement() -> Any:
    """Only the second process sees the infinity; torch asks as the first is placed."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {}
    for kinds in ((Replicate(), Shard(0)), (Shard(0), Replicate())):
        optimizer = torch.optim.SGD(
            [spread(torch.ones(2), mesh, kind) for kind in kinds], lr=1e-2
        )
        scaler = GradScaler("cpu", init_scale=SCALE)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        found[str(kinds[0])] = scaler.get_scale()
    return found


def spread(values: Any, mesh: Any, kind: Any) -> Any:
    """Return a parameter, whose gradient is infinite in one of several parts."""
    made = nn.Parameter(DTensor.from_local(values, mesh, [kind]))
    if isinstance(kind, Shard) and dist.get_rank() == 1:
        values = values * torch.inf
    made.grad = DTensor.from_local(values, mesh, [kind])
    return made


def error_at_the_least_scale() -> Any:
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=1.0, min_scale=1.0, model=model)
    scaler.scale(loss_of(model)).backward()
    if dist.get_rank() == 1:
        infinity("1.weight")(model)
    try:
        scaler.step(optimizer)
    except LossScaleError as error:
        return error.parameter
    return None


def trained(model: Any) -> Any:
    """Return what a model gives in eval mode after a few steps, for all rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        found = model(whole()[0])
    model.train()
    loss_of(model).backward()  # and back
    return found


def modes() -> Any:
    one = trained(sharded(policy="bf16"))
    other = trained(DistributedDataParallel(converted("bf16")))
    return (one - other).abs().max().item()


def built_without_memory() -> Any:
    with torch.device("meta"):
        model, x = network(), torch.empty(8, 8)
    program = fully_shard(amprewrite.convert(model, args=(x,)))
    program.to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(program, network().state_dict(), options=options)
    expected = DistributedDataParallel(converted("bf16"))
    return (trained(program) - trained(expected)).abs().max().item()


def gathered_in_bfloat16() -> Any:
    """Return what is sent, and how far the weights are from those without it."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    model = fully_shard(converted("bf16"), mp_policy=policy)
    with Collectives() as seen:
        loss_of(model).backward()
    one, other = trained(model), trained(sharded(policy="bf16"))
    return seen.found, ((one - other).norm() / other.norm()).item()


def low_weights() -> Any:
    """Return by rounding: difference to one process, and what was lost."""
    found: dict[str, Any] = {}
    for rounding in ("nearest", "stochastic", "kahan"):
        alone, model = network().bfloat16(), fully_shard(network().bfloat16())
        kept: list[Any] = []
        for run, rows in ((model, mine()), (alone, whole())):
            inner = torch.optim.AdamW(run.parameters(), lr=1e-2)
            optimizer = LowWeights(inner, cast("Any", rounding), moments="low")
            for _ in range(5):
                optimizer.zero_grad()
                given = run(rows[0].bfloat16()).float()
                mse_loss(given, rows[1]).backward()
                optimizer.step()
                state = optimizer.state_dict()
                optimizer = LowWeights(inner, cast("Any", rounding), moments="low")
                optimizer.load_state_dict(state)
            kept.append([whole_of(p).float() for p in run.parameters()])
        one, other = (torch.cat([p.flatten() for p in held]) for held in kept)
        off = ((one - other).norm() / other.norm()).item()
        found[rounding] = [off, model[0].weight.dtype == torch.bfloat16]
    return found


def draws_of_low_weights() -> Any:
    """Return the rows of a sharded weight and of a copied one after one step."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: list[Any] = []
    for kind in (Shard(0), Replicate()):
        weight = nn.Parameter(
            distribute_tensor(torch.ones(2, 64).bfloat16(), mesh, [kind])
        )
        optimizer = LowWeights(torch.optim.SGD([weight], lr=2.0**-9))
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        found.append(local(weight).float().tolist())
    return found


def whole_of(tensor: Any) -> Any:
    held = tensor.detach()
    return held.full_tensor() if isinstance(held, DTensor) else held


CHECKS = (
    gathered_in_bfloat16,
    low_weights,
    draws_of_low_weights,
    dtypes_reduced_by_ddp,
    dtypes_sent_by_fully_shard,
    skipped_steps,
    skipped_step_of_ddp,
    skipped_steps_by_first_placement,
    error_at_the_least_scale,
    modes,
    built_without_memory,
)


def main() -> None:
    warnings.simplefilter("ignore")  # float16 on a CPU
    dist.init_process_group("gloo")
    found: dict[str, list[Any]] = {}
    for check in CHECKS:
        found[check.__name__] = [None] * dist.get_world_size()
        dist.all_gather_object(found[check.__name__], check())
    if dist.get_rank() == 0:
        print("FOUND", json.dumps(found), flush=True)  # noqa: T201  # how it answers
    dist.destroy_process_group()
    # gloo's threads may still be freeing tensors, for which they want Python's lock: a
    # normal exit can then hang (seen) or abort (likely the same), whatever the model.
    os._exit(0)


if __name__ == "__main__":
    main()

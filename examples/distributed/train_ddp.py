"""Train a converted model with DistributedDataParallel, in float16 with a loss scale.

    torchrun --nproc-per-node 2 examples/distributed/train_ddp.py

Each process has the whole model and a part of every batch. With --checkpoint FILE a run
goes on from where it was; --kill-at STEP shows it.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import amprewrite
from amprewrite.training.torch import GradScaler

SAVE_EVERY = 5


def build() -> nn.Module:
    """Return a small network, the same in every process."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1)
    return nn.Sequential(*layers).train()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a step, for all processes together."""
    draws = torch.Generator().manual_seed(step)
    x = torch.randn(32, 16, generator=draws)
    return x, x.sum(1, keepdim=True).tanh()


def leave() -> None:
    """End without tidying up.

    The threads of gloo may still be freeing tensors, for which they want Python's lock:
    a process that ends as usual can then abort or hang, whatever the model.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--kill-at", type=int, help="here the last process dies")
    options = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")

    def mine(step: int) -> list[torch.Tensor]:
        return [part.chunk(world)[rank].to(device) for part in batch(step)]

    # First convert, then wrap: parameters and their gradients are float32.
    converted = amprewrite.convert(build().to(device), "fp16", args=(mine(0)[0],))
    model = DistributedDataParallel(converted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = GradScaler(
        "cuda" if on_gpu else "cpu", init_scale=2.0**10, growth_interval=8
    )

    start = 0
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        converted.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])  # the scale and its count of steps
        start = saved["step"] + 1

    for step in range(start, options.steps):
        x, y = mine(step)
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        scaler.scale(loss).backward()  # gradients are averaged here, in float32
        scaler.step(optimizer)  # an infinity of one process was averaged into all
        scaler.update()

        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean:.6f}, scale {scaler.get_scale():g}")
            if options.checkpoint and (step + 1) % SAVE_EVERY == 0:
                new = options.checkpoint.with_suffix(".new")
                state = {
                    "model": converted.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                    "step": step,
                }
                torch.save(state, new)
                new.replace(options.checkpoint)  # whole, or not there
        if step == options.kill_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    leave()


if __name__ == "__main__":
    main()

"""Train a converted model with fully_shard (FSDP2), in float16 with a loss scale.

    torchrun --nproc-per-node 2 examples/distributed/train_fsdp.py

Each process keeps a part of the parameters, of their gradients and of the optimizer's
state; the parameters of one block at a time are gathered. With --checkpoint FOLDER a
run goes on from where it was, also with another number of processes; --kill-at STEP
shows it.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

import amprewrite
from amprewrite.training.torch import GradScaler

SAVE_EVERY = 5


class Block(nn.Module):
    """Two linear layers beside the input."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` and what the layers make of it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build() -> nn.Sequential:
    """Return a small network of blocks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), Block(32), Block(32), nn.Linear(32, 1))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a step, for all processes together."""
    draws = torch.Generator().manual_seed(step)
    x = torch.randn(32, 16, generator=draws)
    return x, x.sum(1, keepdim=True).tanh()


def sharded(device: torch.device | str) -> nn.Module:
    """Return the network, each block converted and then sharded.

    It is built without memory for its values; those that it begins with come from the
    first process. Without args a block is captured at its first call.
    """
    with torch.device("meta"):
        model = build().train()
    for index, block in enumerate(model):
        model[index] = fully_shard(amprewrite.convert(block, "fp16"))
    fully_shard(model)
    model.to_empty(device=device)
    values = build().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, values, options=options)
    return model


def arguments() -> argparse.Namespace:
    """Return what was asked for on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--kill-at", type=int, help="here the last process dies")
    return parser.parse_args()


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
    options = arguments()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    model = sharded(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = GradScaler(
        "cuda" if on_gpu else "cpu", init_scale=2.0**10, growth_interval=8
    )

    def state(step: int) -> dict[str, Any]:
        held, moments = get_state_dict(model, optimizer)
        return {
            "model": held,
            "optimizer": moments,
            "scaler": scaler.state_dict(),
            "step": step,
        }

    def load(folder: str) -> int:
        saved = state(0)
        load_checkpoint(saved, checkpoint_id=folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )
        scaler.load_state_dict(saved["scaler"])  # the scale and its count of steps
        return saved["step"]

    last = options.checkpoint and options.checkpoint / "last"
    start = load(last.read_text()) + 1 if last and last.exists() else 0

    for step in range(start, options.steps):
        x, y = (part.chunk(world)[rank].to(device) for part in batch(step))
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        scaler.scale(loss).backward()  # gradients are averaged here, in float32
        scaler.step(optimizer)  # an infinity in one part skips the step of all
        scaler.update()

        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean:.6f}, scale {scaler.get_scale():g}")
        if last and (step + 1) % SAVE_EVERY == 0:
            folder = str(options.checkpoint / f"step{step}")
            save_checkpoint(state(step), checkpoint_id=folder)
            if rank == 0:
                last.write_text(folder)  # only now does the checkpoint count
        if step == options.kill_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    leave()


if __name__ == "__main__":
    main()

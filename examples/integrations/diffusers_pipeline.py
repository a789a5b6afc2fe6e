"""Make images by a pipeline of diffusers with a converted network of random weights."""

from typing import Any

import torch
from diffusers import (
    DDIMPipeline,  # pyright: ignore[reportPrivateImportUsage]  # names made at run time
    DDIMScheduler,  # pyright: ignore[reportPrivateImportUsage]
    UNet2DModel,  # pyright: ignore[reportPrivateImportUsage]
)

import amprewrite


def images(pipe: DDIMPipeline) -> torch.Tensor:
    """Return two images, f32[2, 8, 8, 1]."""
    pipe.set_progress_bar_config(disable=True)
    made: Any = pipe(
        batch_size=2,
        generator=torch.Generator().manual_seed(0),
        num_inference_steps=4,
        output_type="np",
    )
    return torch.as_tensor(made.images)


def main() -> None:
    """Compare the images of both networks."""
    torch.manual_seed(0)
    network: Any = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8,),
        norm_num_groups=4,
        down_block_types=("AttnDownBlock2D",),
        up_block_types=("UpBlock2D",),
    )
    network.eval()
    converted = amprewrite.convert(network)
    scheduler = DDIMScheduler(num_train_timesteps=20)
    full = images(DDIMPipeline(unet=network, scheduler=scheduler))
    low = images(DDIMPipeline(unet=converted, scheduler=scheduler))

    print(converted.plan.summary())
    print(f"error {(low - full).norm() / full.norm():.5f}")


if __name__ == "__main__":
    main()

"""Pipelines of diffusers with a converted network."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

import amprewrite


def error(found: Any, expected: Any) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8,),
        norm_num_groups=4,
        down_block_types=("AttnDownBlock2D",),
        up_block_types=("UpBlock2D",),
    ).eval()


def images(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    made = pipe(
        batch_size=2,
        generator=torch.Generator().manual_seed(0),
        num_inference_steps=3,
        output_type="np",
    )
    return torch.as_tensor(made.images)


def test_a_pipeline_of_images(tmp_path: Path) -> None:
    model = unet()
    converted = amprewrite.convert(model)
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=20)
    full = diffusers.DDIMPipeline(unet=model, scheduler=scheduler)
    low = diffusers.DDIMPipeline(unet=converted, scheduler=scheduler).to("cpu")
    assert low.unet is converted
    assert 1e-5 < error(images(low), images(full)) < 1e-2
    allowed = [d for d in converted.plan.decisions if d.op_class == "allow"]
    assert len(allowed) > 10
    assert {d.precision for d in allowed} == {"bfloat16"}

    low.save_pretrained(tmp_path)
    again = diffusers.DDIMPipeline.from_pretrained(tmp_path)
    assert type(again.unet) is diffusers.UNet2DModel
    torch.testing.assert_close(images(again), images(full), atol=2e-2, rtol=2e-2)


def test_a_conditional_network() -> None:
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        cross_attention_dim=8,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()
    converted = amprewrite.convert(model)
    x, text = torch.randn(2, 2, 8, 8), torch.randn(2, 5, 8)
    with torch.no_grad():
        for step in (7, 3):
            found = converted(x, torch.tensor(step), encoder_hidden_states=text)
            expected = model(x, torch.tensor(step), encoder_hidden_states=text)
            assert type(found) is type(expected)
            assert 1e-4 < error(found.sample, expected.sample) < 2e-2
    assert len(converted.plans) == 1

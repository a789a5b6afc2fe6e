"""The text of a golden file: the casts of the plan, and the rewritten program."""

import re
import warnings
from typing import Any

import torch

import amprewrite
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.ir import print_graph
from tests.golden.cases import CASES
from tests.plan_text import cast_lines

SOURCE = re.compile(r' source="[^"]*"')
"""Lines move when a case is edited or torch changes; the graph stays the same."""


def record(case: str, policy: str) -> str:
    """Return what the golden file of ``case`` under ``policy`` should hold."""
    torch.manual_seed(0)
    model, args = CASES[case]()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "float16 on a CPU")
        program: Any = amprewrite.convert(model, policy, args=args)
    again = read(export_model(program, args, {}).module)
    graph = SOURCE.sub("", print_graph(again.graph))
    return f"casts\n{cast_lines(program.plan)}\n\nprogram\n{graph}"


if __name__ == "__main__":  # a fresh interpreter, with another seed of hashes
    import sys

    sys.stdout.write(record(*sys.argv[1:]))

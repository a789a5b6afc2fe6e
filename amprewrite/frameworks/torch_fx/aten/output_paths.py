"""Names for the tensors of an output: their paths in its structure."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch

from amprewrite.frameworks.torch_fx.compat.pytrees import is_sequence, pytree

WHOLE = "output"
"""Name of an output that is one tensor."""


def named_tensors(output: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of ``output`` with their paths: ``past_key_values.0.1``.

    Path components are the keys of mappings (also of transformers' outputs), the fields
    of named tuples and dataclasses, and the positions in sequences and other registered
    containers.
    """
    if isinstance(output, torch.Tensor):
        yield path or WHOLE, output
        return
    for name, part in _parts(output):
        yield from named_tensors(part, f"{path}.{name}" if path else str(name))


def _parts(output: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(output, Mapping):
        yield from cast("Mapping[object, Any]", output).items()
    elif is_sequence(output):
        names = getattr(output, "_fields", range(len(output)))
        yield from zip(names, output, strict=True)
    elif is_dataclass(output) and not isinstance(output, type):
        yield from ((f.name, getattr(output, f.name)) for f in fields(output))
    elif not isinstance(output, (str, bytes, int, float, bool, type(None))):
        leaves = pytree.tree_leaves(output)
        if len(leaves) != 1 or leaves[0] is not output:
            yield from enumerate(leaves)

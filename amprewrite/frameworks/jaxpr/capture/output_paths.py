"""Names for the arrays of an output: their paths in its tree structure."""

from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import is_array, part_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util

WHOLE = "output"
"""Name of an output that is one array."""


def named_arrays(tree: Any) -> dict[str, Any]:
    """Return the arrays of ``tree`` by their paths: ``layers.0.weight``."""
    found = tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(map(part_name, path)) or WHOLE: leaf
        for path, leaf in found
        if is_array(leaf)
    }

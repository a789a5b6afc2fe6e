"""Where a node comes from: a module of the model, a line of the user's code."""

import os
import re
from typing import Any

from torch.fx import Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = f"{os.sep}torch{os.sep}"

_NO_MODULE = "_empty_nn_module_stack"
"""What export writes for the sizes that it adds where extents vary."""


def module_path(node: Node) -> str:
    """Return the path of the innermost module that ``node`` stands in."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if not path.startswith(_NO_MODULE)]
    path = paths[-1] if paths else ""
    path = path.replace("L['self']", "").replace("._modules['", ".").replace("']", "")
    path = re.sub(r"\['?(\w+)", r".\1", path)
    return re.sub(r"_(modules|orig_mod)\.", "", path).lstrip(".")


def source_line(node: Node) -> str:
    """Return ``file:line`` of the innermost frame outside the framework."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    users = (frame for frame in reversed(frames) if _LIBRARY not in frame[0])
    file, line = next(users, frames[-1])
    return f"{os.path.basename(file)}:{line}"  # noqa: PTH119  # 8 times faster than Path, once an op

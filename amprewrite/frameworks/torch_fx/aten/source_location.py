"""Where a node comes from: a module of the model, a line of the user's code."""

import inspect
import os
import re
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node

from amprewrite import errors

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120  # compared as text
_OWN = os.path.dirname(errors.__file__) + os.sep  # noqa: PTH120  # compared as text

Frame: TypeAlias = tuple[str, int]
"""A file and a line in it."""

_NO_MODULE = "_empty_nn_module_stack"
"""What export writes for the sizes that it adds where extents vary."""


_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
"""How dynamo writes the local or global variable that a path begins with."""

MODEL = "L['self']"
"""The variable that a path begins with where dynamo captures a module."""


def model_variable(graph: Graph) -> str:
    """Return the variable of a dynamo graph that holds its model.

    Where a function is captured that calls one model, a global or a local, that is
    its variable, so that paths begin inside of it as they do for a module.
    """
    roots = {
        found.group() for node in graph.nodes if (found := _ROOT.match(_stacked(node)))
    }
    return roots.pop() if len(roots) == 1 else MODEL


def module_path(node: Node, model: str = MODEL) -> str:
    """Return the path of the innermost module that ``node`` stands in.

    Args:
        node: The node.
        model: The variable of the model, see :func:`model_variable`; another one that
            a path begins with stays as its first word.
    """
    path = _ROOT.sub(r"\1", _stacked(node).replace(model, "", 1))
    path = path.replace("._modules['", ".").replace("']", "")
    path = re.sub(r"\['?(\w+)'?\]?", r".\1", path)
    return re.sub(r"_(modules|orig_mod)\.", "", path).lstrip(".")


def _stacked(node: Node) -> str:
    """Return the path of the innermost module as the tracer writes it."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if not path.startswith(_NO_MODULE)]
    return paths[-1] if paths else ""


def source_line(node: Node) -> str:
    """Return ``file:line`` of the innermost frame outside the framework."""
    frame = source_frame(node)
    if frame is None:
        return ""
    file, line = frame
    return f"{os.path.basename(file)}:{line}"  # noqa: PTH119  # 8 times faster than Path, once an op


def source_frame(node: Node) -> Frame | None:
    """Return the innermost frame outside the framework; None if there is no frame."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    users = (frame for frame in reversed(frames) if not frame[0].startswith(_LIBRARY))
    file, line = next(users, frames[-1])
    return file, int(line)


def user_frames() -> list[Frame]:
    """Return what :func:`source_frame` may say of a node that is made now.

    The innermost frame outside the framework and, if it is another, the innermost
    ``forward``: a tracer that notes no other frames is the rule, not the exception.
    """
    found: list[Frame] = []
    frame = inspect.currentframe()  # inspect.stack reads every source file
    while frame is not None:
        code = frame.f_code
        is_forward = code.co_name == "forward"
        here = code.co_filename, frame.f_lineno
        if not code.co_filename.startswith((_LIBRARY, _OWN)):
            if not found or (is_forward and here not in found):
                found.append(here)
            if is_forward:
                break
        frame = frame.f_back
    return found

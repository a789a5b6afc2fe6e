"""Names for people: the module and source line of a node, the paths of an output."""

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat.pytrees import is_sequence, pytree
from amprewrite.ops.compounds import class_compound
from amprewrite.user_code import Line, is_users, runs_users

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NO_MODULE = "_empty_nn_module_stack"
"""Prefix in module stacks of the sizes that export adds for varying extents."""


_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
"""Pattern of the local or global variable at the start of dynamo's paths."""

MODEL = "L['self']"
"""Variable at the start of paths in a graph of a module captured by dynamo."""


def model_variable(graph: Graph) -> str:
    """Return the variable in a dynamo graph that refers to its model.

    If a captured function calls one model, a global or a local, it is that variable, so
    that paths begin inside the model as they do for a module.
    """
    matches = (_ROOT.match(_stacked(node)) for node in graph.nodes)
    roots = {match.group() for match in matches if match}
    return roots.pop() if len(roots) == 1 else MODEL


def module_path(node: Node, model: str = MODEL) -> str:
    """Return the path of the innermost module around ``node``.

    Args:
        node: The node.
        model: The variable of the model, see :func:`model_variable`; any other variable
            stays as the first component of a path.
    """
    path = _ROOT.sub(r"\1", _stacked(node).replace(model, "", 1))
    path = path.replace("._modules['", ".").replace("']", "")
    path = re.sub(r"\['?(\w+)'?\]?", r".\1", path)
    return re.sub(r"_(modules|orig_mod)\.", "", path).lstrip(".")


def named_modules(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the calls of modules around a node that are compounds by their class.

    Those of torch's own classes run kernels with names of their own.

    Yields:
        A text that is the same for all nodes of one call, and the compound's name.
    """
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    for call, (_, kind) in stack.items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if name.startswith("torch."):
            continue
        if compound := class_compound(name.rpartition(".")[2]):
            yield call, compound


def _stacked(node: Node) -> str:
    """Return the path of the innermost module as the tracer records it."""
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


def source_frame(node: Node) -> Line | None:
    """Return the innermost frame outside the framework; None if there is no frame."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    users = (frame for frame in reversed(frames) if is_users(frame[0]))
    file, line = next(users, frames[-1])
    return file, int(line)


def user_frames() -> list[Line]:
    """Return the frames that :func:`source_frame` may find for a node made now.

    They are the innermost frame outside the framework and, if it is another, the
    innermost ``forward``: most tracers record no other frames.
    """
    found: list[Line] = []
    frame = inspect.currentframe()  # inspect.stack reads every source file
    while frame is not None:
        code = frame.f_code
        is_forward = code.co_name == "forward"
        here = code.co_filename, frame.f_lineno
        if runs_users(frame):
            if not found or (is_forward and here not in found):
                found.append(here)
            if is_forward:
                break
        frame = frame.f_back
    return found


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

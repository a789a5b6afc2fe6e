"""Module paths in the whole model, for a graph that dynamo captured of a part of it.

After a graph break inside a module, dynamo captures the modules below it by themselves,
and paths begin there. It also captures one graph for all modules of a class, with the
parameters as inputs. The parameters tell which module of the model runs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import nn

from amprewrite.ir import Op, ProgramGraph

_PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")


def local_name(source: str, model: str) -> str:
    """Return the path of a parameter below the captured module; empty if it has none.

    Args:
        source: The parameter in dynamo's spelling, such as
            ``L['self']._modules['up']._parameters['weight']``.
        model: The variable of the module, such as ``L['self']``.
    """
    rest = source.removeprefix(model)
    parts = _PART.findall(rest)
    spelled = "".join(found.group() for found in _PART.finditer(rest))
    return ".".join(parts) if rest != source and spelled == rest else ""


class ModelPaths:
    """Names of the modules and parameters of a model, by identity.

    The model is not kept alive.
    """

    def __init__(self, root: nn.Module) -> None:
        """Read the names of ``root``."""
        self._root = ref(root)
        self._parameters: dict[int, list[str]] = {}
        self._modules: dict[int, str] = {}
        self.first: dict[str, str] = {}
        for name, parameter in root.named_parameters(remove_duplicate=False):
            self._parameters.setdefault(id(parameter), []).append(name)
        untyped: Any = root
        for name, module in untyped.named_modules(remove_duplicate=False):
            self.first[name] = self._modules.setdefault(id(module), name)

    def is_of(self, root: nn.Module) -> bool:
        """Return whether these are the names of ``root``."""
        return self._root() is root

    def prefix(self, weights: Iterable[tuple[str, torch.Tensor]]) -> str | None:
        """Return the path of the module with these parameters; None if there is none.

        Args:
            weights: Path below the module, and the parameter itself. Of several modules
                that share them all, the first is meant.
        """
        found: list[str] | None = None
        for local, parameter in weights:
            names = self._parameters.get(id(parameter), [])
            fronts = list(_fronts(names, local))
            found = fronts if found is None else [x for x in found if x in fronts]
        return found[0] if found else None

    def renamed(self, graph: ProgramGraph, prefix: str) -> ProgramGraph:
        """Return ``graph`` with paths from the model on.

        A module with several names goes by its first: dynamo does not record by which
        one it was called.
        """
        ops = [replace(op, path=self._path(prefix, op)) for op in graph.ops]
        return replace(graph, ops=tuple(ops))

    def _path(self, prefix: str, op: Op) -> str:
        path = ".".join(part for part in (prefix, op.path) if part)
        return self.first.get(path, path)

    def elsewhere(self, graph: ProgramGraph) -> frozenset[str]:
        """Return the paths of the modules of which ``graph`` runs nothing."""
        here = {op.path for op in graph.ops}
        return frozenset(name for name in self.first if not _touches(name, here))


def _fronts(names: Iterable[str], local: str) -> Iterator[str]:
    for name in names:
        if name == local:
            yield ""
        elif name.endswith(f".{local}"):
            yield name.removesuffix(f".{local}")


def _touches(name: str, paths: Iterable[str]) -> bool:
    """Return whether a module is around or inside one of ``paths``."""
    return any(
        path == name or path.startswith(f"{name}." if name else "") for path in paths
    )


def weights_of(
    sources: Mapping[str, str], positions: Mapping[str, int], model: str
) -> dict[int, str]:
    """Return the positions of the parameters of a graph, with their local paths.

    Args:
        sources: Placeholder to its source, in dynamo's spelling.
        positions: Position of each placeholder that is a parameter.
        model: The variable of the captured module.
    """
    named = {
        positions[name]: local_name(sources.get(name, ""), model) for name in positions
    }
    return {index: local for index, local in named.items() if local}

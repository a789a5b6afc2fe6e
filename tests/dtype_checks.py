"""The dtype that is predicted for every value, held to what the framework finds.

These run in every test that converts something: after each rewrite in torch, a run on
fake tensors; in JAX, the values that a program makes while it is traced or run.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock


@contextmanager
def dtypes_checked() -> Iterator[None]:
    """Check every rewrite inside, in the frameworks that are loaded."""
    with ExitStack() as stack:
        if "torch" in sys.modules:
            stack.enter_context(_torch_checked())
        if "jax" in sys.modules:
            stack.enter_context(_jax_checked())
        yield


@contextmanager
def _torch_checked() -> Iterator[None]:
    from amprewrite.frameworks.torch_fx.rewrite import write

    reconcile = write.reconcile

    def reconciled(reading: Any, plan: Any) -> list[str]:
        notes = reconcile(reading, plan)
        check_module(reading.module)
        return notes

    with mock.patch.object(write, "reconcile", reconciled):
        yield


def check_module(module: Any) -> None:
    """Run a graph module on fake tensors, and compare the dtype of every node."""
    import torch
    from torch.fx import GraphModule

    from amprewrite.frameworks.torch_fx.compat import (
        pytrees,
        tensor_internals,
    )

    parts = [part for part in module.modules() if isinstance(part, GraphModule)]
    for part in parts:
        if part in _autocast_bodies(parts):
            continue
        vals = [n.meta.get("val") for n in part.graph.nodes]
        mode = tensor_internals.fake_mode_of(pytrees.pytree.tree_leaves(vals))
        if mode is not None:
            inputs = [
                n.meta.get("val") for n in part.graph.find_nodes(op="placeholder")
            ]
            with mode, tensor_internals.symbolic_kernels(), torch.no_grad():
                _checking_interpreter()(part).run(*inputs, enable_io_processing=False)


def _autocast_bodies(parts: list[Any]) -> list[Any]:
    """Return the bodies in which autocast chooses dtypes that no graph shows."""
    return [
        part.get_submodule(str(n.args[4].target))
        for part in parts
        for n in part.graph.nodes
        if str(n.target) == "wrap_with_autocast"
    ]


def _checking_interpreter() -> Any:
    from torch.fx import Interpreter

    from amprewrite.frameworks.torch_fx.aten.ops import AUTOCAST_SPAN

    class Checking(Interpreter):
        def run_node(self, n: Any) -> Any:
            predicted = n.meta.get("val")
            if predicted is None:
                return self._without_value(n)
            if n.op == "get_attr":
                return _like(predicted)  # a constant may have a fake mode of its own
            if n.op == "placeholder" or _runs_a_body(n):
                return predicted
            try:
                found = super().run_node(n)
            except RuntimeError as error:
                if "data is not allocated" not in str(error):
                    raise
                return predicted  # it reads numbers, which fake tensors have not
            _compare(str(n), n.target, _dtypes(predicted), _dtypes(found))
            return found

        def _without_value(self, n: Any) -> Any:
            """Attributes may be numbers or bodies; guards are not run."""
            if n.op == "get_attr":
                return self.fetch_attr(str(n.target))
            is_span = getattr(n.target, "__name__", "") in AUTOCAST_SPAN
            return super().run_node(n) if is_span else None

    return Checking


def _runs_a_body(n: Any) -> bool:
    from amprewrite.frameworks.torch_fx.compat import operators

    bodies = (
        a for a in n.all_input_nodes if a.op == "get_attr" and "val" not in a.meta
    )
    return operators.is_higher_order(n.target) or any(bodies)


def _like(value: Any) -> Any:
    import torch

    if value.layout is not torch.strided:
        return value
    extents = value.shape, value.stride()
    return torch.empty_strided(*extents, dtype=value.dtype, device=value.device)


def _dtypes(value: Any) -> list[Any]:
    from torch import Tensor

    from amprewrite.frameworks.torch_fx.compat.pytrees import pytree

    leaves = pytree.tree_leaves(value)
    return [leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)]


@contextmanager
def _jax_checked() -> Iterator[None]:
    from amprewrite.frameworks.jaxpr.interpret import interpreter
    from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
    from amprewrite.frameworks.jaxpr.program.program import dtype_name

    run: Callable[..., None] = interpreter.Writer.run

    def checked(self: Any, steps: Iterable[Any], env: dict[str, Any]) -> None:
        steps = tuple(steps)
        run(self, steps, env)
        planned = type(self) is interpreter.Writer and isinstance(
            self.context, Prepared
        )
        stored = self.context.stored if planned else {}
        for step in steps:
            for name in step.results:
                if name in stored:
                    found = dtype_name(env[name])
                    _compare(step.name, step.primitive, [stored[name]], [found])

    with mock.patch.object(interpreter.Writer, "run", checked):
        yield


def _compare(where: str, what: Any, predicted: list[Any], found: list[Any]) -> None:
    assert predicted == found, (
        f"{where} ({what}): the plan predicts {predicted}, the framework finds {found}"
    )

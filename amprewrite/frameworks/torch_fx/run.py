"""A converted model: an ``nn.Module`` that runs a rewritten graph."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import NotCapturedError, PlanMismatchError, UnsupportedError
from amprewrite.frameworks.torch_fx import _compat
from amprewrite.frameworks.torch_fx.read import dtype_name
from amprewrite.ir.text import tensor_text
from amprewrite.plan import Cast, Plan, join_plans


@dataclass(frozen=True)
class Signature:
    """How a captured program is called.

    Attributes:
        names: Names of the model's parameters, in order.
        positional: Number of positional arguments at capture.
        keywords: Names of the keyword arguments at capture, in their order.
        tensors: For each flat input its dtype and extents (None where dynamic); None
            for an input that is no tensor.
        device: Type of the device that the program runs on.
        numbers: For each flat input that is no tensor, its value at capture, which is
            part of the program: a number, a flag, a word or None.
    """

    names: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]
    tensors: tuple[tuple[torch.dtype, tuple[int | None, ...]] | None, ...]
    device: str = "cpu"
    numbers: Mapping[int, object] = field(default_factory=dict[int, object])

    def arrange(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as they were split at capture.

        Raises:
            TypeError: An argument is missing, unexpected or given twice.
        """
        if len(args) == self.positional and tuple(kwargs) == self.keywords:
            return args, dict(kwargs)
        given = {self._name(index): arg for index, arg in enumerate(args)}
        if twice := [name for name in kwargs if name in given]:
            msg = f"converted module called with two values for {', '.join(twice)}"
            raise TypeError(msg)
        given.update(kwargs)
        positional = [self._name(index) for index in range(self.positional)]
        wanted = (*positional, *self.keywords)
        if set(given) != set(wanted):
            have = ", ".join(given) or "nothing"
            msg = (
                f"converted module called with ({have}); it was captured with "
                f"({', '.join(wanted)}); pass these, or convert with the arguments you "
                f"mean to use, or without args"
            )
            raise TypeError(msg)
        return (
            tuple(given[name] for name in positional),
            {name: given[name] for name in self.keywords},
        )

    def _name(self, index: int) -> str:
        """Return the name of a positional argument; those of ``*args`` have none."""
        return self.names[index] if index < len(self.names) else f"argument {index}"

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compare the arguments of a call with those of the capture.

        Raises:
            PlanMismatchError: Names the first input with another dtype, shape or value.
        """
        leaves = _compat.pytree.tree_leaves((args, dict(kwargs)))
        self._check_numbers(leaves)
        for number, (leaf, wanted) in enumerate(
            zip(leaves, self.tensors, strict=False)
        ):
            if wanted is None or not isinstance(leaf, torch.Tensor):
                continue
            dtype, shape = wanted
            same = leaf.dtype == dtype and len(leaf.shape) == len(shape)
            if not same or any(
                d is not None and d != have
                for d, have in zip(shape, leaf.shape, strict=True)
            ):
                extents = tuple("any" if d is None else d for d in shape)
                msg = (
                    f"input {number} is {_tensor_text(leaf)}; the program was captured "
                    f"for {tensor_text(dtype_name(dtype), extents)}; pass "
                    f"dynamic_shapes= for extents that vary, or convert without args"
                )
                raise PlanMismatchError(msg)


    def _check_numbers(self, leaves: Sequence[Any]) -> None:
        """Compare all that is no tensor: it was built into the program."""
        if len(leaves) != len(self.tensors):
            msg = (
                f"called with {len(leaves)} inputs, nested ones counted; the program "
                f"was captured for {len(self.tensors)}; {_OTHERWISE}"
            )
            raise PlanMismatchError(msg)
        for number, (leaf, wanted) in enumerate(zip(leaves, self.tensors, strict=True)):
            held = self.numbers.get(number, None if wanted else leaf)
            if isinstance(leaf, torch.Tensor) and wanted:
                continue
            if wanted or isinstance(leaf, torch.Tensor) or leaf != held:
                have = _tensor_text(leaf) if isinstance(leaf, torch.Tensor) else leaf
                want = "a tensor" if wanted else repr(held)
                msg = (
                    f"input {number} is {have!r}; the program was captured for {want}, "
                    f"which is part of it; {_OTHERWISE}"
                )
                raise PlanMismatchError(msg)


_OTHERWISE = "convert with the arguments you mean to use, or without args"


def _tensor_text(leaf: torch.Tensor) -> str:
    return tensor_text(dtype_name(leaf.dtype), tuple(leaf.shape))


def signature_of(model: nn.Module, module: GraphModule) -> Signature:
    """Return the signature of ``module``, a capture of ``model``."""
    names = tuple(
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )
    tensors: list[tuple[torch.dtype, tuple[int | None, ...]] | None] = []
    numbers: dict[int, object] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            shape = _compat.extents(val)
            extents = tuple(d if isinstance(d, int) else None for d in shape)
            tensors.append((val.dtype, extents))
        else:
            if isinstance(val, (bool, int, float, str, complex, type(None))):
                numbers[len(tensors)] = val
            tensors.append(None)
    args, kwargs = _compat.call_structure(module.graph).in_spec.children()
    return Signature(
        names,
        args.num_children,
        tuple(kwargs.context),
        tuple(tensors),
        numbers=numbers,
    )


class ConvertedModule(nn.Module):
    """What ``convert`` gives back for torch.

    It has the parameters and buffers of the model under the same names, so that
    ``state_dict`` has the same keys; the same call signature and output structure.

    A module converted for inference holds some weights low and cannot be trained:
    ``train()`` raises UnsupportedError. One converted for training shares the model's
    parameters and buffers. The mode (dropout, batch statistics) is part of a captured
    program, so after ``eval()`` the model is captured again in that mode, at the first
    call; both programs are kept.
    """

    _signature: Signature
    _plan: Plan
    _forward: Callable[..., Any]
    _captured_mode: bool

    @property
    def plan(self) -> Plan:
        """Every decision and cast.

        Raises:
            NotCapturedError: The model is captured at its first call in this mode.
        """
        if self.training == self._captured_mode:
            return self._plan
        other = self.__dict__.get("_other")
        if other is None:
            msg = (
                f"this module has no plan for {_mode(self.training)} mode yet: it is "
                f"captured at its first call in that mode; call it once"
            )
            raise NotCapturedError(msg)
        return other.plan

    @property
    def rewritten(self) -> GraphModule | None:
        """The graph that runs, whose attributes are this module's; None if not one."""
        return self.__dict__.get("_graph_module")

    def arranged(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call as they were split at capture.

        Raises:
            TypeError: An argument is missing, unexpected or given twice.
        """
        return self._signature.arrange(args, kwargs)

    @property
    def casts(self) -> tuple[Cast, ...]:
        """The casts of the plan."""
        return self.plan.casts

    def install(
        self, module: GraphModule, plan: Plan, signature: Signature, *, training: bool
    ) -> None:
        """Run the graph of ``module`` from now on, with this module's state."""
        structure = _compat.call_structure(module.graph)
        self._in_spec, self._out_spec = structure.in_spec, structure.out_spec
        # A new owner for the graph: it refers to this module's tensors, so that the
        # full weights that were captured can be freed. Not a submodule: no new names.
        owner = GraphModule(self, module.graph)
        self.__dict__["_graph_module"] = owner
        self._forward = type(owner).forward
        self._plan, self._signature = plan, signature
        self._captured_mode = training
        super().train(training)

    def switch_by(self, capture: Callable[..., "ConvertedModule"]) -> None:
        """Let ``capture(mode, args, kwargs)`` give the program of the other mode."""
        self.__dict__["_capture_mode"] = capture

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rewritten program.

        Raises:
            PlanMismatchError: A tensor has another dtype or shape than at capture.
            TypeError: Other arguments than at capture.
        """
        if self.training != self._captured_mode:
            return self._in_other_mode(args, kwargs)(*args, **kwargs)
        args, kwargs = self._signature.arrange(args, kwargs)
        if not torch.compiler.is_compiling():
            self._signature.check(args, kwargs)
        with _compat.without_autocast(self._signature.device):
            return self._forward(self, *args, **kwargs)

    def _in_other_mode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> "ConvertedModule":
        """Return the program of the mode in which this one was not captured."""
        if self.__dict__.get("_other") is None:
            capture = self.__dict__["_capture_mode"]
            self.__dict__["_other"] = capture(self.training, args, kwargs)
        return self.__dict__["_other"]

    def train(self, mode: bool = True) -> "ConvertedModule":  # noqa: FBT001, FBT002  # as nn.Module
        """Choose the mode of the next call.

        Raises:
            UnsupportedError: Train mode of a module that was converted for inference,
                whose weights are low.
        """
        if mode != self._captured_mode and "_capture_mode" not in self.__dict__:
            msg = (
                f"this module was converted for inference in "
                f"{_mode(self._captured_mode)} mode, and some of its weights are "
                f"stored low; call model.{_mode(mode)}() and convert it again, for training "
                f"with training=True"
            )
            raise UnsupportedError(msg)
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """Return the head of the plan's summary."""
        return self.plan.summary().split("\n")[0]


def _mode(training: bool) -> str:  # noqa: FBT001  # a mode is a boolean in torch
    return "train" if training else "eval"


class LazyModule(ConvertedModule):
    """A model that is captured by dynamo at its first call, once per input signature.

    It shares the modules, parameters and buffers of the model. Models with graph breaks
    work: what lies between the breaks is rewritten, graph by graph.
    """

    def __init__(
        self, model: nn.Module, run: Callable[..., Any], plans: list[Plan]
    ) -> None:
        """Share the state of ``model`` and call ``run``, which appends to ``plans``."""
        super().__init__()
        self.__dict__["_model"] = model
        _compat.share_state(self, model)
        self._run, self._plans = run, plans
        self.training = model.training

    @property
    def plans(self) -> tuple[Plan, ...]:
        """One plan for each graph captured so far."""
        return tuple(self._plans)

    @property
    def plan(self) -> Plan:
        """The plan; those of several graphs are joined, with numbered op names."""
        if not self._plans:
            msg = (
                "this module has no plan yet: it is captured at its first call; call "
                "it once, or convert with args"
            )
            raise NotCapturedError(msg)
        return join_plans(self._plans)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model through the rewriting backend."""
        return self._run(*args, **kwargs)

    def train(self, mode: bool = True) -> "LazyModule":  # noqa: FBT001, FBT002  # as nn.Module
        """Set the mode of the model; each mode is captured when it is first run."""
        self.__dict__["_model"].train(mode)
        self.training = mode
        return self

    def extra_repr(self) -> str:
        """Return the number of captured graphs."""
        return f"captured at the first call: {len(self._plans)} graphs so far"

"""A converted model: an ``nn.Module`` that runs a rewritten graph."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.errors import NotCapturedError, PlanMismatchError, UnsupportedError
from amprewrite.frameworks.torch_fx import _compat, _compat_settings
from amprewrite.frameworks.torch_fx.fold import attribute
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
            given = isinstance(leaf, torch.Tensor)
            unknown = wanted is None and number not in self.numbers
            if unknown or (given and wanted):
                continue
            if given or wanted or leaf != self.numbers[number]:
                have = _tensor_text(leaf) if given else repr(leaf)
                want = "a tensor" if wanted else repr(self.numbers[number])
                msg = (
                    f"input {number} is {have}; the program was captured for {want}, "
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
    _sources: tuple[str, ...] = ()
    _state: tuple[tuple[int, int], ...] = ()
    _copies: Callable[..., Mapping[str, torch.Tensor]]

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

    def keep_copies(self, recipe: Graph) -> None:
        """Let the low copies beside full weights follow them, by ``recipe``."""
        nodes = recipe.find_nodes(op="get_attr")
        self._sources = tuple(dict.fromkeys(str(node.target) for node in nodes))
        if self._sources:
            self._copies = type(GraphModule(self, recipe)).forward
            self._state = self._writes()
            hooks: Any = self  # its stubs say nothing of the hook's type
            hooks.register_load_state_dict_post_hook(_renew)

    def _writes(self) -> tuple[tuple[int, int], ...]:
        """Return what changes when a weight with a low copy is written or replaced."""
        held = (attribute(self, name) for name in self._sources)
        return tuple((id(tensor), _compat.writes(tensor)) for tensor in held)

    def renew(self) -> None:
        """Make the low copies again if their weights have changed."""
        if self._sources and self._writes() != self._state:
            with torch.no_grad():
                for name, value in self._copies(self).items():
                    self.get_buffer(name).copy_(value)
            self._state = self._writes()

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
            self.renew()
        with _compat_settings.without_autocast(self._signature.device):
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
                f"stored low; call model.{_mode(mode)}() and convert it again, for "
                f"training with training=True"
            )
            raise UnsupportedError(msg)
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """Return the head of the plan's summary."""
        return self.plan.summary().split("\n")[0]


def _renew(module: nn.Module, _keys: object) -> None:
    if isinstance(module, ConvertedModule):
        module.renew()


def _mode(training: bool) -> str:  # noqa: FBT001  # a mode is a boolean in torch
    return "train" if training else "eval"


class LazyModule(ConvertedModule):
    """A model that is captured by dynamo at its first call, once per input signature.

    It shares the modules, parameters and buffers of the model. Models with graph breaks
    work: what lies between the breaks is rewritten, graph by graph.
    """

    def __init__(
        self,
        model: nn.Module,
        run: Callable[..., Any],
        plans: list[Plan],
        again: Callable[[nn.Module], "LazyModule"],
    ) -> None:
        """Share the state of ``model`` and call ``run``, which appends to ``plans``.

        Args:
            model: What is run.
            run: Runs it, rewritten.
            plans: Gets the plan of every graph.
            again: Does all this for another model.
        """
        super().__init__()
        self.__dict__["_model"] = model
        self._again = again
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

    def __deepcopy__(self, memo: dict[int, Any]) -> "LazyModule":
        """Convert a copy of the model: what was captured reads the tensors of this."""
        return self._again(copy.deepcopy(self.__dict__["_model"], memo))

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

"""A converted model: an ``nn.Module`` that runs a rewritten graph."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.errors import NotCapturedError, UnsupportedError
from amprewrite.frameworks.torch_fx import _compat, _compat_settings
from amprewrite.frameworks.torch_fx.fold import attribute, lowered
from amprewrite.frameworks.torch_fx.signature import Signature
from amprewrite.plan import Cast, Plan, join_plans


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
    _state: tuple[tuple[torch.Tensor, int], ...] = ()
    _copies: Callable[..., Mapping[str, torch.Tensor]]
    _dtypes: Mapping[str, torch.dtype]

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
        self._dtypes = {name: t.dtype for name, t in self._state_tensors()}
        hooks: Any = self  # its stubs say nothing of the hook's type
        hooks.register_load_state_dict_post_hook(_follow)

    def _state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the ``state_dict``, not detached."""
        state: Mapping[str, object] = self.state_dict(keep_vars=True)
        for name, held in state.items():
            if isinstance(held, torch.Tensor):
                yield name, held

    def follow(self) -> None:
        """Take tensors that were assigned: in the program's dtypes, with their copies.

        A program reads each weight in one dtype, whatever that of a checkpoint is.
        """
        made: dict[int, torch.Tensor] = {}
        for name, held in self._state_tensors():
            dtype = self._dtypes.get(name, held.dtype)
            if held.dtype != dtype:
                if id(held) not in made:
                    made[id(held)] = lowered(held, dtype)
                path, _, last = name.rpartition(".")
                setattr(self.get_submodule(path), last, made[id(held)])
        self.renew()

    def keep_copies(self, recipe: Graph) -> None:
        """Let the low copies beside full weights follow them, by ``recipe``."""
        nodes = recipe.find_nodes(op="get_attr")
        self._sources = tuple(dict.fromkeys(str(node.target) for node in nodes))
        if self._sources:
            self._copies = type(GraphModule(self, recipe)).forward
            self._state = self._writes()

    def _writes(self) -> tuple[tuple[torch.Tensor, int], ...]:
        """Return the weights with a low copy, and how often each was written to."""
        held = (attribute(self, name) for name in self._sources)
        return tuple((tensor, _compat.writes(tensor)) for tensor in held)

    def _changed(self) -> bool:
        """Whether a weight with a low copy was written to or replaced."""
        return any(
            one is not other or writes != before
            for (one, writes), (other, before) in zip(
                self._writes(), self._state, strict=True
            )
        )

    def renew(self) -> None:
        """Make the low copies again if their weights have changed."""
        if self._changed():
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
            other = capture(self.training, args, kwargs)
            self.__dict__["_other"] = other
            self.__dict__["_links"] = list(self._links_to(other))
        if not torch.compiler.is_compiling():  # a tensor may have been replaced here
            for theirs, ours, name in self.__dict__["_links"]:
                theirs[name] = ours[name]
        return self.__dict__["_other"]

    def _links_to(
        self, other: nn.Module
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
        """Yield where each tensor of the state is kept in ``other`` and here."""
        for full_name, _ in self._state_tensors():
            path, _, name = full_name.rpartition(".")
            here, there = self.get_submodule(path), other.get_submodule(path)
            for kept in (_compat.parameters, _compat.buffers):
                if name in kept(here):
                    yield kept(there), kept(here), name

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


def _follow(module: nn.Module, _keys: object) -> None:
    if isinstance(module, ConvertedModule):
        module.follow()


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

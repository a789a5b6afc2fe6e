"""A converted model: an ``nn.Module`` that runs a rewritten graph."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.errors import NotCapturedError, UnsupportedError
from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark
from amprewrite.frameworks.torch_fx.compat import (
    output_sizes,
    private,
    settings,
    threads,
)
from amprewrite.frameworks.torch_fx.module import distributed
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.module.pickling import StoredGraph
from amprewrite.frameworks.torch_fx.module.signature import Signature
from amprewrite.frameworks.torch_fx.module.state import attribute, lowered
from amprewrite.plan import Cast, Plan

_MADE_AGAIN = frozenset(
    ("_graph_module", "_forward", "_in_spec", "_out_spec", "_copies", "_state")
) | {"_places", "_capture_mode", "_compiled_call_impl", "_origin"}
"""Attributes that are not pickled, but made again when the module is loaded."""

_NO_PICKLE = (
    "this module cannot be pickled, since its program has bodies (branches, loops, "
    "checkpoints); save it with torch.export.save(torch.export.export(module, args), "
    "path)"
)


class ConvertedModule(KeepsDtypes):
    """Module that ``convert`` returns for torch: it runs a rewritten graph.

    It has the parameters and buffers of the model under the same names, so that
    ``state_dict`` has the same keys; and the same call signature and output structure.

    A module converted for inference is a snapshot of the model: some weights are low,
    and all tensors are its own, so that changes of one do not affect the other. It
    cannot be trained: ``train()`` raises UnsupportedError. A module converted for
    training shares the model's parameters and buffers. The mode (dropout, batch
    statistics) is part of a captured program, so after ``eval()`` the model is captured
    again in that mode, at the first call; both programs are kept.

    An output that is an input or a weight in the model is that tensor here. Outputs
    that are views of one value in the model are views of one value here.
    """

    _signature: Signature
    _plan: Plan
    _forward: Callable[..., Any]
    _captured_mode: bool
    _sources: tuple[str, ...] = ()
    _state: tuple[Mark, ...] = ()
    _copies: Callable[..., Mapping[str, torch.Tensor]]
    _recipe: StoredGraph
    _dtypes: Mapping[str, torch.dtype]
    _loaded: bool = False

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
        """The graph that runs, owned by this module; None without a single graph."""
        return self.__dict__.get("_graph_module")

    @property
    def is_compiled(self) -> bool:
        """Whether calls run compiled: the module was compiled in place."""
        return self.__dict__.get("_compiled_call_impl") is not None

    def arranged(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, split as at the capture.

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
        self._run_graph(module.graph)
        self._plan, self._signature = plan, signature
        self._captured_mode = training
        super().train(training)
        self._dtypes = {name: t.dtype for name, t in self._state_tensors()}
        hooks: Any = self  # its stubs say nothing of the hook's type
        hooks.register_load_state_dict_post_hook(_follow)

    def note(self, *warnings: str) -> None:
        """Add warnings to the plan."""
        self._plan = self._plan.with_warnings(*warnings)

    def _run_graph(self, graph: Graph) -> None:
        structure = private.call_structure(graph)
        self._in_spec = structure.in_spec
        self._out_spec = output_sizes.keeping_sizes(structure.out_spec)
        # A new owner for the graph: it refers to this module's tensors, so that the
        # full weights that were captured can be freed. Not a submodule: no new names.
        owner = GraphModule(self, graph)
        self.__dict__["_graph_module"] = owner
        self._forward = type(owner).forward
        self._places = distributed.places(self, graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ConvertedModule":
        """Return a deep copy, including the capture function of the other mode."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        own = ("_compiled_call_impl", "_state")
        held = {k: v for k, v in self.__dict__.items() if k not in own}
        twin.__dict__.update(copy.deepcopy(held, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: tensors, graphs and plans; not the model.

        Raises:
            UnsupportedError: The program has bodies: branches, loops, checkpoints.
        """
        bodies = any(isinstance(part, GraphModule) for part in self.modules())
        if self.rewritten is None or bodies:
            raise UnsupportedError(_NO_PICKLE)
        state = {k: v for k, v in self.__dict__.items() if k not in _MADE_AGAIN}
        return {**state, "_graph": StoredGraph.of(self.rewritten.graph)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the program from a pickled state."""
        settings.register_caches()
        self.__dict__.update(state)
        self._run_graph(self.__dict__.pop("_graph").graph())
        if self._sources:
            self.keep_copies(self._recipe.graph())
        self._loaded = True

    def _state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the ``state_dict``, not detached."""
        state: Mapping[str, object] = self.state_dict(keep_vars=True)
        for name, held in state.items():
            if isinstance(held, torch.Tensor):
                yield name, held

    def follow(self) -> None:
        """Adopt tensors that were assigned: cast them, and renew their low copies.

        A program reads each weight in one dtype, whatever dtype a checkpoint has.
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
        """Store the ``recipe`` that recomputes low copies beside full weights."""
        nodes = recipe.find_nodes(op="get_attr")
        self._sources = tuple(dict.fromkeys(str(node.target) for node in nodes))
        if self._sources:
            self._recipe = StoredGraph.of(recipe)
            self._copies = type(GraphModule(self, recipe)).forward
            self._state = self._marks()

    def _weights(self) -> Iterator[torch.Tensor]:
        """Yield the weights that have a low copy."""
        return (attribute(self, name) for name in self._sources)

    def _marks(self) -> tuple[Mark, ...]:
        return tuple(map(Mark, self._weights()))

    def _changed(self) -> bool:
        """Return whether a weight with a low copy was written to or replaced."""
        return not self._state or not all(map(Mark.holds, self._state, self._weights()))

    def renew(self) -> None:
        """Recompute the low copies if their weights have changed."""
        if self._sources and self._changed():
            with torch.no_grad():
                for name, value in self._copies(self).items():
                    self.get_buffer(name).copy_(value)
            self._state = self._marks()

    def switch_by(self, capture: Callable[..., "ConvertedModule"]) -> None:
        """Set the function that captures the program of the other mode.

        Args:
            capture: Function of this module, the mode, args and kwargs.
        """
        self.__dict__["_capture_mode"] = capture

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rewritten program.

        Raises:
            PlanMismatchError: A tensor has another dtype or shape than at capture.
            TypeError: Other arguments than at capture.
            UnsupportedError: A part of this module was sharded on its own.
        """
        if self.training != self._captured_mode:
            return self._in_other_mode(args, kwargs)(*args, **kwargs)
        args, kwargs = self._signature.arrange(args, kwargs)
        if not torch.compiler.is_compiling():
            distributed.refuse_sharded_parts(self)
        changed = distributed.gathered_otherwise(self._places)
        args, kwargs = self._signature.as_captured(args, kwargs, changed)
        if not torch.compiler.is_compiling():
            self._signature.check(args, kwargs)
            self.renew()
        with settings.without_autocast(self._signature.device):
            if not changed:
                return self._forward(self, *args, **kwargs)
            with distributed.read_as_captured(changed):
                return self._forward(self, *args, **kwargs)

    def _in_other_mode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> "ConvertedModule":
        """Return the program of the mode in which this one was not captured."""
        if self.__dict__.get("_other") is None:
            self._capture_other(args, kwargs)
        if not torch.compiler.is_compiling():  # a tensor may have been replaced here
            for theirs, ours, name in self.__dict__["_links"]:
                theirs[name] = ours[name]
        return self.__dict__["_other"]

    @private.uncompiled  # a capture is not part of what is compiled around the call
    def _capture_other(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        with threads.capturing():
            if self.__dict__.get("_other") is not None:
                return  # another thread was here before
            if "_capture_mode" not in self.__dict__:
                raise self._no_mode()
            changed = distributed.gathered_otherwise(self._places)
            args, kwargs = distributed.inputs_as_captured((args, dict(kwargs)), changed)
            with distributed.read_as_captured(changed, copied=True):
                make = self.__dict__["_capture_mode"]
                other = make(self, self.training, args, kwargs)
            self.__dict__["_links"] = list(self._links_to(other))
            self.__dict__["_other"] = other

    def _links_to(
        self, other: nn.Module
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
        """Yield the containers and name of each state tensor in ``other`` and here.

        This runs inside a call, where ``state_dict`` would shard the parameters of a
        module under ``fully_shard`` again.
        """
        for full_name in self._dtypes:
            path, _, name = full_name.rpartition(".")
            here, there = self.get_submodule(path), other.get_submodule(path)
            for kept in (private.parameters, private.buffers):
                if name in kept(here):
                    yield kept(there), kept(here), name

    def train(self, mode: bool = True) -> "ConvertedModule":  # noqa: FBT001, FBT002  # as nn.Module
        """Set the mode of the next call.

        Raises:
            UnsupportedError: Train mode of a module that was converted for inference,
                whose weights are low.
        """
        ways = self.__dict__.keys() & {"_capture_mode", "_other"}
        if mode != self._captured_mode and not ways:
            raise self._no_mode()
        super().train(mode)
        return self

    def _no_mode(self) -> UnsupportedError:
        """Return the error that there is no program for the other mode."""
        have, want = _mode(self._captured_mode), _mode(not self._captured_mode)
        why = (
            f"was pickled with its program for {have} mode alone; call it in both "
            f"modes before"
            if self._loaded
            else f"was converted for inference in {have} mode, and some of its weights "
            f"are stored low; call model.{want}() and convert it again, for training "
            f"with training=True"
        )
        return UnsupportedError(f"this module {why}")

    def extra_repr(self) -> str:
        """Return the first line of the plan's summary."""
        return self.plan.summary().split("\n")[0]


def _follow(module: nn.Module, _keys: object) -> None:
    if isinstance(module, ConvertedModule):
        module.follow()


def _mode(training: bool) -> str:  # noqa: FBT001  # a mode is a boolean in torch
    return "train" if training else "eval"

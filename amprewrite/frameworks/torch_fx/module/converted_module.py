"""A converted model: an ``nn.Module`` that runs a rewritten graph."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.errors import PlanMismatchError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    pytrees,
    settings,
    tracing,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import keeping_sizes
from amprewrite.frameworks.torch_fx.lowering.lower_graph import Lowered, lower_graph
from amprewrite.frameworks.torch_fx.lowering.regions import lowered_runner
from amprewrite.frameworks.torch_fx.module import distributed
from amprewrite.frameworks.torch_fx.module.low_copies import LowCopies
from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.module.signature import (
    TRACED_OTHERWISE,
    Signature,
)
from amprewrite.frameworks.torch_fx.module.state import (
    EXTRAS,
    adopt_assigned,
    constants_of,
    mode_name,
    read_copies,
)
from amprewrite.frameworks.torch_fx.module.stored import pickling
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant
from amprewrite.plan import Cast, Plan

_MADE_AGAIN = frozenset(("_graph_module", "_forward", "_in_spec", "_out_spec")) | {
    *("_places", "_compiled_call_impl", "_origin", "_flat", "_lowered"),
}
"""Attributes that are not pickled, but made again when the module is loaded."""

_BODIES = "_bodies"
"""Name of the bodies of the graph (branches, loops, regions) in a pickle."""


class ConvertedModule(KeepsDtypes):
    """Program of a model: a module that runs a rewritten graph.

    It has containers with the parameters and buffers of the model under the same names,
    so that ``state_dict`` has the same keys; and the same call signature and output
    structure. Constants and copies are apart, in ``amprewrite_extras``. A captured
    program (a graph module, an exported program) is converted to this; a model of a
    class of its own holds one for each signature and mode, which read its tensors.

    An output that is an input or a weight in the model is that tensor here. Outputs
    that are views of one value in the model are views of one value here.

    Attributes:
        path: Path of the part of the model that it runs; empty for the model.
        number: Number of captures of the model until this.
        used: Number of the last call, of those of the model.
        lowers: Whether calls run a lowered graph: the same in fewer steps.
        gathers: Whether tensors were set since: it may be sharded, and gathers them.
        constants: Constants that a call writes to attributes of the model.
        attributes: Names of the attributes of the model whose values it has.
    """

    path: str = ""
    number: int = 0
    used: int = 0
    lowers: bool = True
    _signature: Signature
    _plan: Plan
    _forward: Callable[..., Any]
    _flat: Callable[..., Any] | None = None
    _lowered: Lowered | None = None
    _captured_mode: bool
    _low = LowCopies.none()
    _dtypes: Mapping[str, torch.dtype]
    _full: Mapping[str, torch.dtype] = MappingProxyType({})
    _linked: bool = False
    gathers: bool = False
    constants: tuple[Constant, ...] = ()
    attributes: frozenset[str] = frozenset()

    @property
    def plan(self) -> Plan:
        """Every decision and cast, with the record of the lowering."""
        if not tracing.in_dispatch_mode():
            self._lower()
        return self._plan

    @property
    def decided(self) -> Plan:
        """The plan, as it is known without a lowering of the program."""
        return self._plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all graphs."""
        return (self.plan,)

    @property
    def captured_mode(self) -> bool:
        """Whether it was captured in train mode."""
        return self._captured_mode

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
        structure = pytrees.call_structure(graph)
        self._in_spec = structure.in_spec
        self._out_spec = keeping_sizes(structure.out_spec)
        # A new owner for the graph: it refers to this module's tensors, so that the
        # full weights that were captured can be freed. Not a submodule: no new names.
        owner = self.__dict__["_graph_module"] = GraphModule(self, graph)
        module_parts.share_all_tensors(owner, self)
        self._graph = graph
        self._forward, self._flat, self._lowered = type(owner).forward, None, None
        self._places = distributed.places(self, graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ConvertedModule":
        """Return a deep copy, including the capture function of the other mode."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        skip = ("_compiled_call_impl", "_flat", "_lowered")
        held = {k: v for k, v in self.__dict__.items() if k not in skip}
        for spec in (self._in_spec, self._out_spec):
            memo[id(spec)] = spec
        twin.__dict__.update(copy.deepcopy(held, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: tensors, graphs and plans; not the model."""
        assert self.rewritten is not None
        state = {k: v for k, v in self.__dict__.items() if k not in _MADE_AGAIN}
        extras, bodies = pickling.without_bodies(self.get_submodule(EXTRAS))
        state["_modules"] = {**module_parts.children(self), EXTRAS: extras}
        graph = pickling.StoredGraph.of(self.rewritten.graph)
        return {**state, "_graph": graph, _BODIES: bodies}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the program from a pickled state."""
        settings.register_caches()
        self.__dict__.update(state)
        for name, body in self.__dict__.pop(_BODIES).items():
            self.get_submodule(EXTRAS).add_module(name, body.body())
        self._run_graph(self.__dict__.pop("_graph").graph())

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
        read = set(self.names_read()) if self._linked else None  # others read the rest
        tensors = (t for t in self._state_tensors() if read is None or t[0] in read)
        adopt_assigned(self, tensors, self._dtypes, self._full)
        self.renew()

    def keep_copies(self, recipe: Graph) -> None:
        """Keep the ``recipe`` that computes low copies beside full weights."""
        self._low = LowCopies(self, recipe)

    def renew(self) -> None:
        """Compute the low copies again if their weights have changed."""
        self._low.renew(self)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run as the program of a model, in an eager call with arguments it takes.

        As :meth:`forward`, without what the model has checked: in most calls each step
        counts (0.1 to 1 us of 10).
        """
        run, signature = self._flat, self._signature
        if (
            run is None
            or not self._linked
            or self.gathers
            or self._low.sources
            or len(args) != signature.positional
            or tuple(kwargs) != signature.keywords
            or settings.is_any_autocast_on()
            or tracing.in_dispatch_mode()
            or (self._places and self._places[0].is_changed)
        ):
            return self.forward(*args, **kwargs)
        try:
            return run(args, kwargs)
        except RuntimeError as error:
            distributed.look_at_all(self, self._places, self._graph, error)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rewritten program.

        Raises:
            PlanMismatchError: A tensor has another dtype or shape than at capture.
            TypeError: Other arguments than at capture.
            UnsupportedError: A part of this module was sharded on its own.
        """
        args, kwargs = self._signature.arrange(args, kwargs)
        eager = not torch.compiler.is_compiling()
        if eager and not self._linked:
            distributed.refuse_sharded_parts(self)
        changed = self.gathered_otherwise()
        args, kwargs = self._signature.as_captured(args, kwargs, changed)
        if eager:
            if not self._linked:
                self._signature.check(args, kwargs)
            self.renew()
        elif not self._linked and not self._signature.fits_traced(args, kwargs):
            raise PlanMismatchError(TRACED_OTHERWISE)
        read = distributed.read_as_captured(changed) if changed else nullcontext()
        with settings.without_any_autocast(), read:
            if not eager or tracing.in_dispatch_mode():
                return self._forward(self, *args, **kwargs)
            try:
                run = self._flat or self._flattened()
                if not self._low.sources:
                    return run(args, kwargs)
                with self._low.passing_gradients(self):
                    return run(args, kwargs)
            except RuntimeError as error:
                distributed.look_at_all(self, self._places, self._graph, error)
        return self.forward(*args, **kwargs)

    def _flattened(self) -> Callable[..., Any]:
        """Return the function of the graph; it reads the tensors of this module."""
        lowered, structures = self._lower(), (self._in_spec, self._out_spec)
        self._flat = lowered_runner(self, lowered, *structures, self._plan.recompute)
        return self._flat

    def _lower(self) -> Lowered:
        """Return the lowered graph, which the plan then has a record of."""
        if self._lowered is not None:
            return self._lowered
        found = Lowered(self._graph)
        if self.lowers:
            held = constants_of(self._graph, self._low.recipe())
            trains, packs = self._plan.training, not self.is_compiled
            found = lower_graph(self._graph, self, held, trains=trains, packs=packs)
        self._lowered = found
        self._plan = replace(self._plan, lowerings=found.lowerings)
        return found

    def gathered_otherwise(self) -> list[distributed.Place]:
        """Return the tensors with another dtype than at the capture.

        If a model holds this program, it says when parameters were set; until then one
        of them is looked at for all, as where a whole set is replaced in a call.
        """
        seldom = self._linked and not self.gathers
        if seldom and not (self._places and self._places[0].is_changed):
            return []
        return distributed.gathered_otherwise(self._places, always=self._linked)

    def tensors_were_set(self, *, follow: bool) -> None:
        """Take note that tensors of the model were set; adopt them if ``follow``."""
        self.gathers = True
        if follow:
            self.follow()

    def weights_are_trained(self) -> None:
        """Do nothing: writes by an optimizer are counted, and copies renewed."""

    def tensors_read(self) -> Iterator[torch.Tensor]:
        """Yield the tensors of the model that the program reads."""
        for name in self.names_read():
            path, _, last = name.rpartition(".")
            holder = self.get_submodule(path)
            for kept in (module_parts.parameters(holder), module_parts.buffers(holder)):
                held = kept.get(last)  # parts may have been changed since
                if held is not None:
                    yield held

    def names_read(self) -> list[str]:
        """Return the names of the tensors of the model that the program reads."""
        nodes = self._graph.find_nodes(op="get_attr")  # all weights, used or not
        names = [str(node.target) for node in nodes if node.users]
        return [n for n in (*names, *self._low.sources) if not n.startswith(EXTRAS)]

    def linked(self, own: Mapping[str, torch.Tensor]) -> None:
        """Run as a program of a model, with its tensors, from now on.

        Args:
            own: Weights by name that the model stores in another dtype than this
                program reads: it gets copies of these.
        """
        if own:
            recipe = read_copies(self._graph, self, own, self._low.recipe())
            self._run_graph(self._graph)
            self.keep_copies(recipe)
        self._low.outdate()
        self._linked, self._flat, self._lowered = True, None, None
        module_parts.share_all_tensors(self.__dict__["_graph_module"], self)
        self._places = distributed.places(self, self._graph)
        self._dtypes = {name: t.dtype for name, t in self._state_tensors()}
        self._full = {name: full_dtype(t) for name, t in self._state_tensors()}

    def takes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the program is for these arguments."""
        try:
            self.refuse(args, kwargs)
        except (PlanMismatchError, TypeError):
            return False
        return self._signature.is_on(*self._signature.arrange(args, kwargs))

    def refuse(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the program is not for.

        Raises:
            PlanMismatchError: A tensor has another dtype or shape than at capture.
            TypeError: Other arguments than at capture.
        """
        args, kwargs = self._signature.arrange(args, kwargs)
        changed = self.gathered_otherwise()
        self._signature.check(*self._signature.as_captured(args, kwargs, changed))

    def takes_traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the program is for arguments that are being traced."""
        return self._signature.fits_traced(args, kwargs)

    def is_like(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the program is for these arguments in other extents."""
        return self._signature.is_like(args, kwargs)

    def train(self, mode: bool = True) -> "ConvertedModule":  # noqa: FBT001, FBT002  # as nn.Module
        """Set the mode, which has to be that of the capture.

        Raises:
            UnsupportedError: It is the other one.
        """
        if mode != self._captured_mode:
            have, want = mode_name(self._captured_mode), mode_name(mode)
            raise UnsupportedError(
                f"this module was converted in {have} mode, and a captured program "
                f"has no other; capture the model in {want} mode and convert that"
            )
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """Return the first line of the plan's summary."""
        return self._plan.summary().split("\n")[0]


def _follow(module: nn.Module, _keys: object) -> None:
    if isinstance(module, ConvertedModule):
        module.follow()

"""State that a converted model shares with all of its parts."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from amprewrite.errors import UnsupportedError, warn
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.compat import module_hooks
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.state import mode_name
from amprewrite.frameworks.torch_fx.plain.plain_model import Stored
from amprewrite.frameworks.torch_fx.programs.calls import CallKey, Extents
from amprewrite.frameworks.torch_fx.programs.structure import Watch

MANY = 16
"""Largest number of programs of a model; then the one not called for longest goes."""

TOO_MANY = (
    f"{MANY} programs were captured of one model, one for each signature that no other "
    f"program runs, and no more are kept: the next takes the place of the one that was "
    f"called longest ago; pass arguments of fewer kinds, or convert with "
    f"dynamic_shapes="
)


FOR_ALL_MODULES = (
    "hooks for all modules (register_module_forward_hook) run on the converted model "
    "and its program, and on none of its parts; register hooks on the parts that need "
    "them"
)


class Capture(Protocol):
    """Function that captures a model and returns its program."""

    request: Request

    def __call__(self, conversion: Conversion, /) -> ConvertedModule:
        """Return the program for one signature."""
        ...


class Table:
    """The programs of one structure of a model.

    Attributes:
        programs: The programs, the latest last.
        known: The program of each call so far.
    """

    def __init__(self) -> None:
        """Start without programs."""
        self.programs: list[ConvertedModule] = []
        self.known = dict[CallKey, ConvertedModule]()
        self._parts: list[weakref.ref[nn.Module]] | None = None

    def outdated(self, parts: Iterable[nn.Module]) -> list[ConvertedModule]:
        """Return the programs if a part was replaced by one of the same structure.

        They read the tensors of the part that was replaced.

        Args:
            parts: The parts of the model now, which are noted.
        """
        before, self._parts = self._parts, [weakref.ref(part) for part in parts]
        return [*self.programs] if before not in (None, self._parts) else []


class Caller(Protocol):
    """The programs of a converted model, or of a part of one.

    Attributes:
        shared: State that all parts of the model share.
        path: Path of the part; empty for the model.
        extents: Record of the shapes so far.
        last: The program that ran last.
    """

    shared: "SharedState"
    path: str
    extents: Extents
    last: ConvertedModule | None

    @property
    def others(self) -> Sequence[ConvertedModule]:
        """The programs of the structure that the model has now."""
        ...


@dataclass(eq=False)
class SharedState:
    """State that a converted model shares with all of its parts.

    Attributes:
        capture: Captures a program; None after unpickling.
        trains: Whether the model was converted for training.
        mode: The only mode in which it may be called; None for both.
        model: The model that was converted, if its tensors are shared.
        watch: Counters of changes.
        programs: All programs, of the model and of its parts.
        clock: Number of calls.
        hooks: Forward hooks that the model had itself: its programs run them. Those
            that are registered on the converted model run around its programs.
        refusal: Reason why the model cannot be copied, which a capture needs.
        low: Tensors that are, or were, stored low.
        lazy: Whether it was converted without args, and exported at its first call.
        with_args: Whether it was converted with args.
    """

    capture: Capture | None
    trains: bool
    mode: bool | None = None
    model: nn.Module | None = None
    watch: Watch = field(default_factory=Watch)
    programs: list[ConvertedModule] = field(default_factory=list[ConvertedModule])
    clock: int = 0
    hooks: module_hooks.Hooks = field(default_factory=dict[str, Any])
    refusal: str = ""
    low: Stored = field(default_factory=Stored)
    lazy: bool = False
    with_args: bool = False
    _adopt: Callable[[nn.Module, Any], None] | None = None
    _root: Callable[[], nn.Module | None] = lambda: None
    _told: bool = False
    _numbers: int = 0
    _told_of_hooks: bool = False

    def tell_of_hooks(self) -> None:
        """Warn once that hooks for all modules run on no part of the model."""
        if not self._told_of_hooks:
            self._told_of_hooks = True
            warn(FOR_ALL_MODULES)

    def own(self, root: nn.Module, adopt: Callable[[nn.Module, Any], None]) -> None:
        """Set the converted model, which is not kept alive.

        Args:
            root: The converted model.
            adopt: Makes the plain parts of a model converted ones.
        """
        self._root, self._adopt = weakref.ref(root), adopt

    def root(self) -> nn.Module:
        """Return the converted model.

        Raises:
            UnsupportedError: It does not exist any more.
        """
        root = self._root()
        if root is None:
            msg = (
                "this is a part of a converted model that does not exist any more, and "
                "its programs went with it; keep the model, or convert the part of "
                "amprewrite.original(model)"
            )
            raise UnsupportedError(msg)
        return root

    def refuse_copy(self) -> None:
        """Refuse to copy a model with functions that refer to its parts.

        Raises:
            UnsupportedError: It has one.
        """
        if self.refusal:
            raise UnsupportedError(self.refusal)

    def adopt_parts(self) -> None:
        """Make parts that were added to the model converted parts."""
        if self._adopt is not None:
            self._adopt(self.root(), self)

    def add_hooks(self, own: module_hooks.Hooks) -> None:
        """Add forward hooks that a program registered on the model itself."""
        names = {*self.hooks, *own}
        self.hooks = {n: {**self.hooks.get(n, {}), **own.get(n, {})} for n in names}

    def copied(self, memo: dict[int, Any]) -> "SharedState":
        """Return the state of a deep copy of the model, without programs."""
        made = SharedState(
            self.capture,
            self.trains,
            self.mode,
            hooks=self.hooks,
            refusal=self.refusal,
            low=dict(self.low),
            lazy=self.lazy,
            with_args=self.with_args,
        )
        memo[id(self)] = made
        return made

    def add(self, program: ConvertedModule) -> None:
        """Add a program; drop the one that was called longest ago if there are many."""
        self._numbers += 1
        program.number = self._numbers
        self.clock += 1
        program.used = self.clock
        self.programs.append(program)
        if len(self.programs) >= MANY and not self._told:
            self._told = True
            warn(TOO_MANY)
        if len(self.programs) > MANY:
            self.programs.remove(min(self.programs, key=lambda p: p.used))

    def check_mode(self, mode: bool) -> None:  # noqa: FBT001  # a mode is a boolean in torch
        """Refuse the mode in which a model converted for inference was not captured.

        Raises:
            UnsupportedError: It was converted in the other mode.
        """
        if self.mode is not None and mode != self.mode:
            have, want = mode_name(self.mode), mode_name(mode)
            why = (
                f"was pickled with its programs for {have} mode alone; call it in both "
                f"modes before"
                if self.capture is None and self.trains
                else f"was converted for inference in {have} mode, and some of its "
                f"weights are stored low; call model.{want}() and convert it again, "
                f"for training with training=True"
            )
            raise UnsupportedError(f"this module {why}")
        if mode:
            for program in self.programs:
                program.weights_are_trained()

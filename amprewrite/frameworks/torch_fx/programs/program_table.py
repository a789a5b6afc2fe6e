"""The programs of a converted model: one for each call signature and mode."""

import copy
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import NotCapturedError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat import compiling, module_hooks, threads
from amprewrite.frameworks.torch_fx.module import distributed
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import (
    CAPTURED_LATER,
    NO_PLAN,
    LazyModule,
)
from amprewrite.frameworks.torch_fx.module.state import mode_name
from amprewrite.frameworks.torch_fx.plain import written
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.frameworks.torch_fx.plain.plain_model import plain_of, remember_low
from amprewrite.frameworks.torch_fx.programs.calls import Extents, call_key
from amprewrite.frameworks.torch_fx.programs.new_program import (
    captured_at_call,
    exported_at_call,
    have_same_tensors,
    program_to_export,
    refuse_made_of_low,
)
from amprewrite.frameworks.torch_fx.programs.part_hooks import adopt_hooks, hook_keys
from amprewrite.frameworks.torch_fx.programs.shared_state import SharedState, Table
from amprewrite.frameworks.torch_fx.programs.structure import (
    Key,
    Names,
    Settings,
    have_changed,
    portable,
    settings_of,
    structure_key,
    ties_of,
)
from amprewrite.plan import Plan

KEYS = 4096
"""Largest number of remembered calls, for each structure."""

LOADED = (
    "this module was loaded with the programs that it had, and cannot capture another; "
    "load the model itself, and convert it again"
)
"""Message about a loaded model that is to be captured again."""

WITH_ARGS = (
    "this module was converted with args, so that its plan is there at once; call "
    "recapture(args=..., kwargs=...) with the arguments of a call"
)
"""Message about a model that is to be captured again without arguments."""

Stored = tuple[Key, ConvertedModule]
"""A program with the portable key of its structure."""


class Programs:
    """The programs of a converted model, or of a part that is called by itself.

    Attributes:
        shared: State that all parts of the model share.
        path: Path of the part; empty for the model.
        hooks: Forward hooks that the part had when it became one.
        extents: Record of the shapes so far.
        last: The program that ran last.
    """

    def __init__(self, shared: SharedState, owner: nn.Module, path: str = "") -> None:
        """Start without a program.

        Args:
            shared: State that all parts of the model share.
            owner: The converted model or part.
            path: Path of the part.
        """
        self.shared, self.path = shared, path
        self.hooks = frozenset(module_hooks.call_hooks(owner))
        self._owner = weakref.ref(owner)
        self.extents = Extents()
        self._tables: dict[Key, Table] = {}
        self._table = Table()
        self.last: ConvertedModule | None = None
        self._first: ConvertedModule | None = None
        self._version = -1
        self._tensors = shared.watch.tensors
        self._settings: Sequence[Settings] = ()
        self._names: Names = frozenset()
        self._ties: tuple[tuple[str, ...], ...] = ()
        self._stored: list[Stored] = []

    @property
    def others(self) -> Sequence[ConvertedModule]:
        """The programs of the structure that the model has now."""
        return self._table.programs

    def call(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the program of a call; capture it if there is none.

        Args:
            owner: The converted model or part.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            CaptureError: The model cannot be captured for these arguments.
            PlanMismatchError: A given plan is for a program of other arguments.
            UnsupportedError: A part was changed in a way that no program can follow.
        """
        if torch.compiler.is_compiling():
            return self._traced(owner, args, kwargs)(*args, **kwargs)
        program = self.last = self.program_to_run(owner, args, kwargs)
        if isinstance(program, LazyModule):
            return self._call_lazy(owner, program, args, kwargs)
        if module_hooks.are_for_all_modules():
            self.shared.tell_of_hooks()
        if program.is_compiled:
            return program(*args, **kwargs)
        return program.call(args, kwargs)

    def program_to_run(
        self, owner: nn.Module, args: Any, kwargs: Any
    ) -> ConvertedModule:
        """Return the program of a call, after its writes to attributes of the model."""
        program = self.program_for(owner, args, kwargs)
        constants = program.constants
        if constants and written.write_constants(constants, owner):
            self.shared.watch.count()
        return program

    def _call_lazy(
        self,
        owner: nn.Module,
        program: LazyModule,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a program by dynamo; take over the attributes that the model writes."""
        try:
            found = written.run(program, owner, self.shared.watch, args, kwargs)
        except Exception as error:
            if program is not self._first and not program.plans:  # it takes all calls
                self._drop(program)
            refuse_made_of_low(self.shared, owner, error)
            raise
        if len(program.plans) != program.looked_at:  # the code of new captures
            program.written = written.written_attributes(program.model, owner)
            program.looked_at = len(program.plans)
            if hook_keys(program.model) - program.hooks:
                self._adopt_hooks(owner, program)
        written.write_back(program.written)
        if have_changed(self._settings):  # written by the forward, which dynamo follows
            self._note_settings(owner)
        return found

    def _adopt_hooks(self, owner: nn.Module, program: LazyModule) -> None:
        """Keep a program for the structure that it made by registering hooks."""
        own = adopt_hooks(program.model, owner, program.hooks)
        program.hooks = hook_keys(program.model)
        if not self.path:
            self.shared.add_hooks(own)
        before = self._table
        self.refresh(owner)
        if self._table is not before:
            before.programs.remove(program)
            self._table.programs.append(program)
            self._forget()

    def program_for(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ConvertedModule:
        """Return the program of a call, captured if there is none; see :meth:`call`."""
        shared = self.shared
        if self._version != shared.watch.structure or have_changed(self._settings):
            self.refresh(owner)
        if self._tensors != shared.watch.tensors:
            self._follow(owner)
        program = self._table.known.get(call_key(args, kwargs))
        if program is None:
            program = self._find(owner, args, kwargs)
        if isinstance(program, LazyModule):
            program.renew_copies(owner)
        shared.clock += 1
        program.__dict__["used"] = shared.clock  # a module sets attributes in 4 us
        return program

    def install(self, owner: nn.Module, program: ConvertedModule) -> None:
        """Add the program that ``owner`` was made for."""
        self._names = program.attributes
        self.refresh(owner)
        self._add(owner, program)
        self._first = self.last = program

    def recapture(
        self, owner: nn.Module, args: tuple[Any, ...] | None, kwargs: Any
    ) -> None:
        """Forget all programs; capture that of a call, if its arguments are given.

        Args:
            owner: The converted model.
            args: Positional arguments of the call; None without one.
            kwargs: Keyword arguments of the call; None without one.

        Raises:
            UnsupportedError: The model was converted with args and none are given, or
                was loaded.
        """
        state, given = self.shared, args is not None or kwargs is not None
        if state.capture is None:
            raise UnsupportedError(LOADED)
        if state.with_args and not given:
            raise UnsupportedError(WITH_ARGS)
        with threads.capturing():
            for part in owner.modules():
                programs: Programs | None = vars(part).get(STATE)
                if programs is not None and programs.shared is state:
                    programs._forget_all()  # noqa: SLF001  # of the same class
            state.programs.clear()
            if given:
                self.program_for(owner, args or (), kwargs or {})

    def _forget_all(self) -> None:
        self._tables, self._table, self._stored = {}, Table(), []
        self._first = self.last = None
        self._version = -1

    def note_extents(self, owner: nn.Module, args: Any, kwargs: Any) -> None:
        """Record the arguments of the first program; others show which extents vary."""
        self.extents.note(owner, args, kwargs)

    @property
    def plan(self) -> Plan:
        """The plan of the program that ran last, in this mode.

        Raises:
            NotCapturedError: None was captured in this mode.
        """
        return self.latest().plan

    def latest(self) -> ConvertedModule:
        """Return the program that ran last, in this mode.

        Raises:
            NotCapturedError: None was captured in this mode.
        """
        owner = self._owner()
        if owner is not None and self._version != self.shared.watch.structure:
            with suppress(UnsupportedError):  # a part that the next call refuses
                self.refresh(owner)
        if self.last in self._table.programs:
            return self.last
        if self._table.programs:
            return self._table.programs[-1]
        msg = NO_PLAN
        if any(table.programs for table in self._tables.values()):
            mode = "" if owner is None else f" for {mode_name(owner.training)} mode"
            msg = (
                f"this module has no plan{mode} yet: it is captured at its first call "
                f"in that mode; call it once"
            )
        raise NotCapturedError(msg)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all programs, in the order of their captures."""
        found = [p for table in self._tables.values() for p in table.programs]
        found.sort(key=lambda program: program.number)
        return tuple(plan for program in found for plan in program.plans)

    @property
    def rewritten(self) -> GraphModule | None:
        """The graph that ran last; None without a single graph."""
        return self.latest().rewritten

    def line(self) -> str:
        """Return a line about the precision of the model."""
        try:
            return self.plan.summary().split("\n")[0]
        except NotCapturedError:
            return "captured at the first call: 0 graphs so far"

    def copied_to(self, owner: nn.Module, memo: dict[int, Any]) -> "Programs":
        """Return these programs as those of a deep copy of the model.

        Args:
            owner: The copy, which has no programs yet.
            memo: Copies made so far, as ``copy.deepcopy`` keeps them.
        """
        made = Programs(self.shared.copied(memo), owner)
        made.shared.watch.names = self.shared.watch.names
        copies: dict[int, ConvertedModule] = {}
        for key, table in self._tables.items():
            made._tables[key] = Table()  # of the same class
            for program in table.programs:
                twin = copies[id(program)] = copy.deepcopy(program, memo)
                made._tables[key].programs.append(twin)  # as above
                made.shared.add(twin)
        made._stored = [(key, copy.deepcopy(p, memo)) for key, p in self._stored]
        made.extents = copy.deepcopy(self.extents)  # as above
        made.last = copies.get(id(self.last))  # as above
        return made

    def to_pickle(self) -> Any:
        """Return the state to pickle with the model: its programs for each mode."""
        found = [
            (portable(key), program)
            for key, table in self._tables.items()
            for program in table.programs
        ]
        if not found and not self._stored:
            raise UnsupportedError(CAPTURED_LATER)
        return self.shared.trains, self.shared.mode, [*found, *self._stored]

    def store(self, programs: Sequence[Stored]) -> None:
        """Keep loaded programs until the model is called in their structure."""
        self._stored = list(programs)
        names = (key[0] for key, _ in programs)
        self.shared.watch.names = self.shared.watch.names.union(*names)
        modes = {program.captured_mode for _, program in programs}
        if len(modes) == 1:
            self.shared.mode = modes.pop()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Programs":
        """Return the programs themselves: a copied part is a plain module."""
        return self

    def original(self, owner: nn.Module) -> nn.Module:
        """Return the plain model with the current weights.

        Raises:
            UnsupportedError: It cannot be copied.
        """
        model = self.shared.model
        if model is not None and have_same_tensors(model, owner):
            if model.training != owner.training:
                model.train(owner.training)
            # Further programs run copies of the model, which they wrote to.
            written.share_attributes(model, owner)
            return model
        self.shared.refuse_copy()
        plain = plain_of(owner, shared=self.shared.trains)
        if self.shared.trains:
            self.shared.model = plain
        return plain

    def follow(self) -> None:
        """Adopt tensors that were assigned: cast them, and renew their low copies."""
        for table in self._tables.values():
            for program in table.programs:
                program.follow()

    def _follow(self, owner: nn.Module) -> None:
        self._tensors = self.shared.watch.tensors
        if ties_of(owner) != self._ties:
            self.refresh(owner)
        for program in self._table.programs:
            program.tensors_were_set(follow=not self.shared.trains)

    def refresh(self, owner: nn.Module) -> None:
        """Find the programs of the structure that ``owner`` has now."""
        with threads.capturing():
            distributed.refuse_sharded_parts(owner)
            self.shared.adopt_parts()
            remember_low(self.shared.root(), self.shared.low)
            self._table = self._find_table(owner)
            for program in self._table.outdated(owner.modules()):
                self._drop(program)
            self._version = self.shared.watch.structure
            if not self.path:
                self.shared.watch.changed = False
            self._note_settings(owner)
            self._ties = ties_of(owner)
            for stored in [*self._stored]:
                key, program = stored
                if portable(self._key(owner, key[0])) == key:
                    self._stored.remove(stored)
                    self._add(owner, program)

    @compiling.uncompiled  # dynamo of torch 2.11 fails on what it raises
    def _find(self, owner: nn.Module, args: Any, kwargs: Any) -> ConvertedModule:
        """Return a program that takes the arguments; capture one if none does."""
        with threads.capturing(), threads.without_users_modes():
            table, key = self._table, call_key(args, kwargs)
            if len(table.known) >= KEYS:
                table.known.clear()
            takers = (p for p in reversed(table.programs) if p.takes(args, kwargs))
            found = program = next(takers, None)
            if program is None:
                program = captured_at_call(self, owner, args, kwargs)
            elif isinstance(program, LazyModule) and program.is_idle:
                program = exported_at_call(self, owner, program, args, kwargs)
            if program is not found:
                self._add(owner, program)
            self._table.known[key] = program
            return program

    def _drop(self, program: ConvertedModule) -> None:
        """Forget a program: the model itself failed, or has other parts."""
        if program in self.shared.programs:
            self.shared.programs.remove(program)
        self.last = None
        self._forget()

    def _key(self, owner: nn.Module, names: Names) -> Key:
        return structure_key(owner, names, by_name=self.shared.trains)

    def _note_settings(self, owner: nn.Module) -> None:
        by_name = self.shared.trains
        self._settings = settings_of(owner, self._names, by_name=by_name)

    def _find_table(self, owner: nn.Module) -> Table:
        """Return the programs whose attributes have the values that they had then."""
        for names in {names: None for names, *_ in self._tables}:
            table = self._tables.get(self._key(owner, names))
            if table is not None:
                self._names = names
                return table
        return self._tables.setdefault(self._key(owner, self._names), Table())

    def _read(self, owner: nn.Module, names: Names) -> None:
        """Compare more attributes from now on, for all programs of this structure."""
        self._names |= names
        self._tables = {k: t for k, t in self._tables.items() if t is not self._table}
        self._tables[self._key(owner, self._names)] = self._table
        self._note_settings(owner)

    def _add(self, owner: nn.Module, program: ConvertedModule) -> None:
        remember_low(self.shared.root(), self.shared.low)  # it may have stored some
        self.shared.watch.names |= program.attributes
        if not program.attributes <= self._names:
            self._read(owner, program.attributes)
        self._table.programs.append(program)
        self.shared.add(program)
        self._forget()

    def _forget(self) -> None:
        """Leave out the programs that the model keeps no more."""
        for table in self._tables.values():
            table.programs = [p for p in table.programs if p in self.shared.programs]
            left = [(k, p) for k, p in table.known.items() if p in table.programs]
            table.known = dict(left)
        if self._first not in self.shared.programs:
            self._first = None

    def look_up(self, owner: nn.Module) -> None:
        """Find the programs of a changed structure: a call that is traced does not."""
        if self.shared.watch.changed and self._tables:
            with suppress(UnsupportedError):  # a part that the next call refuses
                self.refresh(owner)

    def _traced(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ConvertedModule:
        """Return the program of a call that is part of a larger capture."""
        watch, export = self.shared.watch, torch.compiler.is_exporting()
        if self._version != watch.structure if self.path else watch.changed:
            _refreshed_apart(self, owner)
        for program in reversed(self._table.programs):
            if (export or not program.constants) and program.takes_traced(args, kwargs):
                return program
        if export:
            return program_to_export(self, owner, args, kwargs)
        return _captured_apart(self, owner, args, kwargs)


# A compiler of code around a call traces neither of them.
_captured_apart = compiling.uncompiled(Programs.program_to_run)
_refreshed_apart = compiling.uncompiled(Programs.refresh)

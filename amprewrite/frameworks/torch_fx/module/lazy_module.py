"""A module captured at its first call, which runs the model through dynamo."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amprewrite.errors import NotCapturedError, UnsupportedError
from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark
from amprewrite.frameworks.torch_fx.compat import module_parts, tensor_internals
from amprewrite.frameworks.torch_fx.module import distributed
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.snapshot import deep_copy, snapshot
from amprewrite.frameworks.torch_fx.module.state import attribute
from amprewrite.frameworks.torch_fx.module.weight_copies import COPIES
from amprewrite.frameworks.torch_fx.untouched.first_writes import outdated_by_put_back
from amprewrite.plan import Plan, join_plans

CAPTURED_LATER = (
    "a module that is captured at its first call cannot be pickled; save the model and "
    "convert it again, or convert with args"
)
"""Message about a module without programs that could be stored."""

NO_PLAN = (
    "this module has no plan yet: it is captured at its first call; call it once, or "
    "convert with args"
)
"""Message about a module that was not called yet."""


NO_SCRIPT = (
    "torch.jit.trace cannot trace a call that dynamo captures; convert with args of "
    "this call, or use torch.export.export"
)
"""Message about a call that TorchScript traces."""


@dataclass
class Use:
    """Use of the parameters of a model: for training, or for inference alone.

    Attributes:
        trained: Whether they are, or were, trained: then they are cast at each use,
            because not every write to them can be detected.
    """

    trained: bool


def run_later(model: nn.Module, *, trains: bool) -> tuple[nn.Module, Use]:
    """Return the module that a lazy module runs, and the use of its parameters.

    It is the model itself if it is trained, or if parts of it have no parameters yet;
    its weights are cast at each use. Otherwise it is a copy: low copies of its weights
    are kept, and torch does not detect every write to a weight (``weight.data.copy_()``
    counts as none).

    Args:
        model: The model.
        trains: Whether its parameters are trained.

    Raises:
        UnsupportedError: The model holds something that cannot be copied.
    """
    if trains or any(map(is_lazy, model.parameters())):
        return model, Use(trained=True)
    return snapshot(model), Use(trained=False)


class LazyModule(ConvertedModule):
    """A model that is captured by dynamo at its first call, once per input signature.

    It shares the modules, parameters and buffers of the module that it runs: the model
    itself if it was converted for training, else a copy. Models with graph breaks work:
    the parts between the breaks are rewritten, graph by graph.

    Attributes:
        looked_at: Number of graphs when the attributes that the model writes were
            looked up.
        others: Number of attributes that were set when it was given them.
        written: Attributes that the model writes: its part, the converted one, a name.
        hooks: Keys of the forward hooks of the model's parts when it was captured.
        unwatched: Parts that are not converted, each with that of the converted model;
            None before they are looked up.
    """

    def __init__(
        self,
        model: nn.Module,
        run: Callable[..., Any],
        plans: list[Plan],
        again: Callable[[nn.Module], "LazyModule"],
        use: Use,
    ) -> None:
        """Share the state of ``model`` and call ``run``, which appends to ``plans``.

        Args:
            model: The module to run.
            run: Function that runs it, rewritten.
            plans: List that receives the plan of every graph.
            again: Function that makes a lazy module of another model.
            use: Use of its parameters.
        """
        super().__init__()
        self.__dict__["_model"] = model
        self._again, self._use = again, use
        self.looked_at = self.others = -1
        self.hooks = frozenset[int]()
        self.written: list[tuple[nn.Module, nn.Module, str]] = []
        self.unwatched: list[tuple[nn.Module, nn.Module]] | None = None
        self._own: dict[str, tuple[Mark | None, torch.Tensor]] = {}
        self._owner: Callable[[], nn.Module | None] = lambda: None
        self._in_model = False
        module_parts.share_state(self, model)
        self._run, self._plans = run, plans
        self._dtypes = {name: p.dtype for name, p in model.named_parameters()}
        self.training = model.training

    @property
    def model(self) -> nn.Module:
        """The module that is run."""
        return self.__dict__["_model"]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the graphs captured so far."""
        return tuple(self._plans)

    @property
    def plan(self) -> Plan:
        """The plan; plans of several graphs are joined, with numbered op names."""
        if not self._plans:
            raise NotCapturedError(NO_PLAN)
        return join_plans(self._plans)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LazyModule":
        """Convert a copy of the model: captured graphs hold the tensors of this one."""
        return self._again(deep_copy(self.model, memo))

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled: compiled graphs exist only in this process.

        Raises:
            UnsupportedError: Always; graphs of dynamo exist in this process alone.
        """
        raise UnsupportedError(CAPTURED_LATER)

    def takes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return True: dynamo captures each signature."""
        del args, kwargs
        return True

    def takes_traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether dynamo captures the call: not within an export.

        The export would trace the model itself, in full precision.
        """
        del args, kwargs
        return not torch.compiler.is_exporting()

    @property
    def captured_mode(self) -> bool:
        """Whether the model is in train mode."""
        return self.training

    @property
    def is_idle(self) -> bool:
        """Whether it was not captured or called yet, and weights were not trained."""
        return self.looked_at < 0 and not self._plans and not self._use.trained

    def weights_are_trained(self) -> None:
        """Cast weights at each use from now on."""
        self._use.trained = True

    def tensors_read(self) -> Iterator[torch.Tensor]:
        """Yield the tensors of the model: all are read as they are."""
        model = self.model
        yield from model.parameters()
        yield from model.buffers()

    def linked(self, own: Mapping[str, torch.Tensor]) -> None:
        """Run as a program of a model, with its tensors, from now on.

        Args:
            own: Tensors by name that the model stores in another dtype: copies.
        """
        model, self._in_model = self.model, True
        module_parts.share_state(self, model)
        self._own = {name: (None, held) for name, held in own.items()}
        for name, held in own.items():
            if held.requires_grad and held.is_leaf:
                untyped: Any = held  # its stubs say nothing of the hook's type
                untyped.register_post_accumulate_grad_hook(partial(self._hand_on, name))

    def _hand_on(self, name: str, held: torch.Tensor) -> None:
        """Add the gradient of a copy to that of the tensor in the model."""
        owner = self._owner()
        if owner is None or held.grad is None:  # a tied copy was handed on before
            return
        source = attribute(owner, name)
        grad = held.grad.to(source.dtype)
        source.grad = grad if source.grad is None else source.grad + grad
        held.grad = None

    def renew_copies(self, owner: nn.Module) -> None:
        """Write to the copies of tensors that were written to in the model."""
        if self._own:
            self._owner = weakref.ref(owner)
        for name, (mark, held) in self._own.items():
            source = attribute(owner, name)
            if mark is None or not mark.holds(source):
                with torch.no_grad():
                    held.copy_(source)
                COPIES.share(held, source)
                self._own[name] = Mark(source), held
                outdated_by_put_back(self._outdate)

    def _outdate(self) -> None:
        self._own = {name: (None, held) for name, (_, held) in self._own.items()}

    def gathered_otherwise(self) -> list[distributed.Place]:
        """Return no parameters: dynamo captures each dtype."""
        return []

    def tensors_were_set(self, *, follow: bool) -> None:
        """Do nothing: dynamo sees the tensors at each call."""

    def is_like(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return False: there is no plan of one graph."""
        del args, kwargs
        return False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model through the rewriting backend.

        Raises:
            UnsupportedError: A part of this module was sharded on its own; or
                TorchScript traces the call.
        """
        if tensor_internals.is_torchscript():
            raise UnsupportedError(NO_SCRIPT)
        if not torch.compiler.is_compiling():
            if not self._in_model:  # else the model says when its parts change
                distributed.refuse_sharded_parts(self)
            if not self._plans:
                distributed.refuse_other_dtypes(self, self._dtypes)
        return self._run(*args, **kwargs)

    def train(self, mode: bool = True) -> "LazyModule":  # noqa: FBT001, FBT002  # as nn.Module
        """Set the mode; each mode is captured when it is first run."""
        self.model.train(mode)
        self.training = mode
        self._use.trained = self._use.trained or mode
        return self

    def extra_repr(self) -> str:
        """Return the number of captured graphs."""
        return f"captured at the first call: {len(self._plans)} graphs so far"

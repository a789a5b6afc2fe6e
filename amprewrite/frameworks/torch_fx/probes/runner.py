"""Run a torch model on one set of arguments, isolated, and read its tensors.

Tensors are read as float64 for ``verify``, and rounded as an op reads them.
"""

import copy
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name, named_tensors
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode_of
from amprewrite.frameworks.torch_fx.untouched.first_writes import writes_in_place
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.measure.runs import Array, Call, Run, Values


def to_array(tensor: torch.Tensor) -> Array:
    """Return a float tensor as f64; a complex one as pairs in a new last dimension."""
    # A copy: the program may write to the tensor later.
    wide = real(tensor.detach()).to(device="cpu", dtype=torch.float64, copy=True)
    return np.asarray(wide.numpy())


class TensorValues(Values):
    """Values of a float tensor, valid until it is written; complex ones are pairs.

    Args:
        tensor: The tensor; on the host it is not copied, if it is contiguous.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Bring the values to the host."""
        held = real(tensor.detach())
        flat = self._flat = held.cpu().reshape(-1)

        def block(start: int, stop: int) -> Array:
            return np.asarray(flat[start:stop].to(torch.float64).numpy())

        super().__init__(tuple(held.shape), block)

    def exceeds(self, limit: float) -> bool:
        """Return whether a magnitude is above ``limit``, or is no number."""
        if not self.size:
            return False
        least, largest = torch.aminmax(self._flat)
        return not -limit <= float(least) <= float(largest) <= limit

    def __array__(
        self,
        dtype: Any = None,
        copy: object = None,  # NumPy's protocol; it is one always
    ) -> Any:
        """Return a copy in float64."""
        return to_array(self._flat.reshape(self.shape)).astype(dtype or np.float64)


def real(output: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers; a complex one as pairs."""
    if not output.is_complex():
        return output
    return torch.view_as_real(output.resolve_conj())


def floats(value: Any) -> list[torch.Tensor]:
    """Return the float and complex tensors in a value."""
    return [*filter(is_inexact, pytree.tree_leaves(value))]


def is_inexact(leaf: object) -> TypeGuard[torch.Tensor]:
    """Return whether a leaf is a float or complex tensor."""
    is_tensor = isinstance(leaf, torch.Tensor)
    return is_tensor and (leaf.is_floating_point() or leaf.is_complex())


def views_of(
    made: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
) -> list[Hashable] | None:
    """Return the element of an operand that each element of a result is.

    Two ops of which these are equal, and not None, move the same elements and compute
    nothing.

    Args:
        made: The float results of an op.
        operands: Its float operands.

    Returns:
        For each result the operand whose memory it reads, and how; None if there is no
        result, or one has its own memory.
    """
    found: list[Hashable] = []
    for result in made:
        place = next((i for i, x in enumerate(operands) if _shares(result, x)), None)
        if place is None:
            return None
        found.append((place, _layout(operands[place]), _layout(result)))
    return found or None


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or {one.layout, other.layout} != {torch.strided}:
        return False
    memory = one.untyped_storage().data_ptr()
    return memory != 0 and memory == other.untyped_storage().data_ptr()


def _layout(tensor: torch.Tensor) -> Hashable:
    flags = tensor.is_conj(), tensor.is_neg()
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), flags


def paired(
    shape: tuple[Any, Any], other: tuple[Any, Any], join: Callable[[Any, Any], Any]
) -> tuple[Any, Any]:
    """Return arguments of the structure ``shape``, each leaf joined with the other's.

    A part of another structure in ``other`` is joined with itself.
    """

    def pair(one: Any, two: Any) -> Any:
        leaves, spec = pytree.tree_flatten(one)
        values = pytree.tree_leaves(two)
        if len(values) != len(leaves):
            values = leaves
        return pytree.tree_unflatten(list(map(join, leaves, values)), spec)

    (args, kwargs), (others, named) = shape, other
    spare = [None] * len(args)
    return (
        [pair(one, two) for one, two in zip(args, [*others, *spare], strict=False)],
        {key: pair(one, named.get(key)) for key, one in kwargs.items()},
    )


def rounded(read: Any, exact: Any) -> Any:
    """Return a copy of ``exact`` in the dtype and layout of ``read``.

    If the program clamped large numbers to the range of its dtype (a mask of -3.4e38 in
    float16), the copy is clamped too.
    """
    if not isinstance(read, torch.Tensor):
        return read
    usable = isinstance(exact, torch.Tensor) and exact.shape == read.shape
    if not usable or read.layout != torch.strided:
        return read.clone()
    limits = torch.finfo(read.dtype) if read.is_floating_point() else None
    made = torch.empty_like(read).copy_(exact)
    if limits and _is_cut(made, exact, limits.max) and bool(read.isfinite().all()):
        bounded = exact.clamp(limits.min, limits.max)
        made.copy_(torch.where(exact.isfinite(), bounded, exact))
    return made


def unrounded(exact: Any, read: Any) -> Any:
    """Return ``read`` in the dtype of ``exact``; values but tensors unchanged."""
    if not isinstance(exact, torch.Tensor):
        return exact
    if not isinstance(read, torch.Tensor) or read.shape != exact.shape:
        return exact.clone()
    return read.to(exact.dtype, copy=True)


def widened_again(exact: Any, read: Any, *, products: bool) -> tuple[Any, Any]:
    """Return rounded operands in the dtypes of the reference's.

    Args:
        exact: Positional and keyword operands of the original's op.
        read: The same operands, rounded.
        products: Whether it multiplies and sums, so that float32 is wide enough for
            operands in 16 bits.
    """
    narrow = products and fits_float32(exact, read)
    return paired(exact, read, in_float32 if narrow else unrounded)


def in_float32(exact: Any, read: Any) -> Any:
    """Return ``read`` as float32 if it is a float; others as :func:`unrounded`."""
    if isinstance(read, torch.Tensor) and read.is_floating_point():
        return read.to(torch.float32, copy=True)
    return unrounded(exact, read)


def fits_float32(exact: Any, read: Any) -> bool:
    """Return whether a product of 16-bit operands may be computed in float32.

    The products are exact there, and their sum has a thousandth of the error of a
    result in 16 bits, for which it is compared.

    Args:
        exact: Operands of the original's op, with tensors at any depth.
        read: The same operands, rounded.
    """
    leaves, rounded_to = pytree.tree_leaves(exact), pytree.tree_leaves(read)
    if len(leaves) != len(rounded_to) or torch.float64 in leaves:
        return False
    pairs = [
        (one, two)
        for one, two in zip(leaves, rounded_to, strict=True)
        if is_inexact(one)
    ]
    return all(
        isinstance(two, torch.Tensor)
        and two.dtype in (torch.bfloat16, torch.float16)
        and two.shape == one.shape
        for one, two in pairs
    )


def _is_cut(made: torch.Tensor, exact: torch.Tensor, limit: float) -> bool:
    """Return whether ``exact`` has numbers that are beyond the range of its copy."""
    if made.dtype.itemsize > 1:  # numbers beyond it became infinite
        return exact.dtype.itemsize > made.dtype.itemsize and not _is_finite(made)
    if exact.dtype.itemsize < 4 or not exact.numel():  # noqa: PLR2004  # bytes: no wider
        return False
    linalg: Any = torch.linalg
    return not bool(linalg.vector_norm(exact.flatten(), float("inf")) <= limit)


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


Dtypes = Mapping[torch.dtype, torch.dtype]


@dataclass
class Runner:
    """Runner of models on copies of one set of arguments, from one random state.

    Attributes:
        call: The arguments, and whether gradients are requested.
        devices: CUDA devices with a random state that may change.
        scale: Factor on the loss, divided out of the gradients again.
        random: Whether a run drew random numbers.
        inputs: Whether gradients of the float arguments are requested with those of
            the parameters.
        written: Models that ran, by identity, with the memory that they wrote to. In
            further runs no op is watched for writes.
    """

    call: Call
    devices: list[int]
    scale: float = 1.0
    random: bool = False
    inputs: bool = False
    written: dict[int, tuple[nn.Module, list[torch.UntypedStorage]]] = field(
        default_factory=dict[int, tuple[nn.Module, list[torch.UntypedStorage]]]
    )

    def arguments(self, dtypes: Dtypes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a copy of the arguments, floats in other dtypes."""

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return copy.deepcopy(leaf)
            held = leaf.detach().to(dtypes.get(leaf.dtype, leaf.dtype), copy=True)
            derived = self._derives_inputs and held.is_floating_point()
            return held.requires_grad_(leaf.requires_grad or derived)

        return pytree.tree_map(convert, (self.call.args, dict(self.call.kwargs)))

    @contextmanager
    def isolated(
        self, *models: object, program: GraphModule | None = None
    ) -> Generator[None]:
        """Put models and the random state back after the context.

        Args:
            models: The models; those that are no modules are left out.
            program: The only program that runs in the context; None if other code does.
        """
        modules = [model for model in models if isinstance(model, nn.Module)]
        first = [module for module in modules if id(module) not in self.written]
        watched = bool(first) and (program is None or writes_in_place(program))
        undone = undisturbed(*modules, watched=watched)
        with fork_rng(self.devices), undone as before:
            for module in modules:
                for memory in self.written.get(id(module), (module, ()))[1]:
                    before.writes.copy(memory)
            state = torch.get_rng_state()
            states = [torch.cuda.get_rng_state(device) for device in self.devices]
            try:
                with torch.set_grad_enabled(self.call.gradients):
                    yield
            finally:
                now = [torch.cuda.get_rng_state(device) for device in self.devices]
                pairs = zip(
                    (state, *states), (torch.get_rng_state(), *now), strict=True
                )
                self.random |= not all(torch.equal(one, two) for one, two in pairs)
        for module in first if watched else ():
            self.written[id(module)] = module, before.writes.known

    def run(
        self,
        model: object,
        function: Callable[..., Any],
        dtypes: Dtypes | None = None,
        *,
        owned: bool = False,
    ) -> Run:
        """Call ``function``, which runs ``model``, and return its results.

        Args:
            model: The model.
            function: The function.
            dtypes: Dtypes of the arguments, by those that they have.
            owned: Whether the model is a copy for this run, and may be written to.
        """
        given = self.arguments(dtypes or {})
        args, kwargs = self._copied(given) if self._derives_inputs else given
        models, program = () if owned else (model,), getattr(model, "rewritten", None)
        with self.isolated(*models, program=program):
            found = dict(named_tensors(function(*args, **kwargs)))
            derived = {} if not self.call.gradients else self._derived(model, given)
            gradients = self._gradients(derived, found)
            inputs = frozenset[str](self._inputs(given) if derived else ())
            return replace(run_of(found), gradients=gradients, inputs=inputs)

    @property
    def _derives_inputs(self) -> bool:
        return self.inputs and self.call.gradients

    def _copied(self, given: Any) -> Any:
        """Return copies that the model may write to, derived from ``given``."""
        return pytree.tree_map(
            lambda x: (
                x.clone() if isinstance(x, torch.Tensor) and x.requires_grad else x
            ),
            given,
        )

    def _inputs(self, given: Any) -> dict[str, torch.Tensor]:
        """Return the arguments that get gradients, by their path in the call."""
        if not self._derives_inputs:
            return {}
        args, kwargs = given
        named = named_tensors({"args": args, "kwargs": kwargs})
        return {name: x for name, x in named if x.requires_grad}

    def _derived(self, model: object, given: Any) -> dict[str, torch.Tensor]:
        """Return the tensors that get gradients, by name."""
        named = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
        held = {name: p for name, p in named.items() if p.requires_grad}
        return held | self._inputs(given)

    def _gradients(
        self,
        held: Mapping[str, torch.Tensor],
        found: Mapping[str, torch.Tensor],
    ) -> dict[str, Array]:
        """Return the gradients of :func:`_loss`; zeros where a tensor has none."""
        if not held:
            return {}
        loss = _loss(found)
        derived: Any = [None] * len(held)  # of outputs that lead to none of them
        if loss is not None:
            derived = torch.autograd.grad(
                loss * self.scale, list(held.values()), allow_unused=True
            )
        left, arrays = list(reversed(derived)), dict[str, Array]()
        del derived
        for name, tensor in held.items():
            grad = left.pop()  # dropped when it is copied
            array = to_array(torch.zeros_like(tensor) if grad is None else grad)
            array /= self.scale
            arrays[name] = array
        return arrays


def run_of(found: Mapping[str, torch.Tensor]) -> Run:
    """Return a run with copies of these outputs: one may be a buffer."""
    return Run(
        outputs={n: to_array(t) for n, t in found.items() if is_inexact(t)},
        dtypes={n: dtype_name(t.dtype) for n, t in found.items()},
        others={
            name: tensor.detach().cpu().numpy().copy()
            for name, tensor in found.items()
            if not is_inexact(tensor)
        },
    )


def _loss(found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the mean square distance of the float outputs to fixed random targets."""
    terms: list[torch.Tensor] = []
    for number, tensor in enumerate(found.values()):
        if tensor.is_floating_point() and tensor.requires_grad:
            draws = torch.Generator().manual_seed(number)
            target = torch.randn(tensor.shape, generator=draws, dtype=torch.float64)
            terms.append((tensor.double() - target.to(tensor.device)).square().mean())
    return torch.stack(terms).sum() if terms else None


def check_values(what: str, root: nn.Module, call: Call) -> None:
    """Check that a model and its arguments have values, before a run.

    Args:
        what: Name of the caller, for the message.
        root: The model.
        call: The arguments.

    Raises:
        UnsupportedError: A tensor is on the device meta, or fake.
    """
    given = pytree.tree_leaves((call.args, dict(call.kwargs)))
    held = (*root.named_parameters(), *root.named_buffers())
    for name, tensor in (*held, *(("an argument", leaf) for leaf in given)):
        is_fake = fake_mode_of([tensor]) is not None
        if is_fake or (isinstance(tensor, torch.Tensor) and tensor.is_meta):
            kind = "fake" if is_fake else "on the device meta"
            msg = (
                f"{what} runs the model, and {name} has no values: it is {kind}; load "
                f"the model and pass tensors (without values it can be converted and "
                f"inspected)"
            )
            raise UnsupportedError(msg)


def devices_of(root: nn.Module, call: Call) -> list[int]:
    """Return the CUDA devices with a random state that may change."""
    held = pytree.tree_leaves((call.args, dict(call.kwargs)))
    tensors = [x for x in held if isinstance(x, torch.Tensor)]
    found = (*tensors, *root.parameters(), *root.buffers())
    return sorted({tensor.device.index or 0 for tensor in found if tensor.is_cuda})


@contextmanager
def full_float32(devices: list[int]) -> Generator[None]:
    """Disable TF32 in float32 products on CUDA, in the context."""
    if not devices:
        yield
        return
    before = torch.get_float32_matmul_precision()
    flags = torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    try:
        with flags.flags(
            enabled=flags.enabled,
            benchmark=flags.benchmark,
            deterministic=flags.deterministic,
            allow_tf32=False,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)

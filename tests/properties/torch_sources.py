"""Random torch modules as source text: views, writes, draws, casts, loops, containers.

A program is grown line by line: a line is kept where torch itself runs it, its values
stay small and finite, and no decision (a comparison, an index of a maximum) hangs on
less than a few roundings. So any line may be proposed, and errors mean something.
"""

import linecache
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop  # noqa: TID251  # no public name
from torch.nn import functional as F  # noqa: N812  # torch's own name
from torch.utils.checkpoint import checkpoint

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree

ROWS, WIDTH, LARGEST = 4, 8, 40.0

Template = tuple[str, int]
"""A line with places for values, and how often it is proposed."""

COMPUTE: Sequence[Template] = (
    ("{n} = self.first({f})", 6),
    ("{n} = self.second({f})", 4),
    ("{n} = self.tied({f})", 2),
    ("{n} = self.norm({f})", 3),
    ("{n} = self.block({f})", 2),
    ("{n} = {f} @ {g}", 3),
    ("{n} = torch.einsum('ij,kj->ik', {f}, {g})", 1),
    ("{n} = torch.addmm({f}, {g}, {h})", 1),
    ("{n} = F.scaled_dot_product_attention({f}[None], {g}[None], {h}[None])[0]", 2),
    ("{n} = F.conv1d({f}[None], self.kernel, padding=1)[0]", 1),
    ("{n} = torch.softmax({f}, -1)", 2),
    ("{n} = F.gelu({f})", 2),
    ("{n} = torch.tanh({f})", 2),
    ("{n} = torch.exp(-{f}.abs())", 1),
    ("{n} = 2.0 ** torch.tanh({f})", 1),
    ("{n} = {f} + {g}", 3),
    ("{n} = {f} * {g}", 2),
    ("{n} = 0.5 * {f} - 1", 1),
    ("{n} = {f} / ({g}.abs() + 1)", 1),
    ("{n} = {f} - {f}.mean(-1, keepdim=True)", 2),
    ("{n} = {f}.var(-1, keepdim=True)", 1),
    ("{n} = {f}.sum(0)", 1),
    ("{n} = {f}.cumsum(-1)", 1),
    ("{n} = {f}.norm(dim=-1, keepdim=True)", 1),
    ("{n} = {f}.max(-1).values", 1),
    ("{n} = torch.sort({f}, -1).values", 1),
    ("{n} = torch.cat([{f}, {g}], -1)", 1),
    ("{n} = torch.stack([{f}, {g}]).mean(0)", 1),
    ("{n} = torch.where({b}, {f}, {g})", 2),
    ("{n} = {f}.masked_fill({b}, 0.5)", 1),
    ("{n} = {f}.clone()", 2),
    ("{n} = {f}.contiguous()", 1),
    ("{n} = self.table({i})", 1),
    ("{n} = {f}.index_select(0, {i} % {f}.shape[0])", 1),
    ("{n} = {f}.gather(0, {i}[None] % {f}.shape[0])", 1),
    ("{n} = torch.zeros_like({f}) + self.stored", 1),
    ("{n} = self.stored * {f}", 1),
    ("{n} = torch.full_like({f}, 0.25)", 1),
    ("{n} = torch.ones({f}.shape[0], 8, dtype={f}.dtype)", 1),
)

VIEWS: Sequence[Template] = (
    ("{n} = {f}[1:3]", 2),
    ("{n} = {f}[0]", 2),
    ("{n} = {f}[:, :4]", 2),
    ("{n} = {f}[..., ::2]", 1),
    ("{n} = {f}.t()", 1),
    ("{n} = {f}.transpose(0, -1)", 1),
    ("{n} = {f}.unsqueeze(0)", 1),
    ("{n} = {f}.squeeze(0)", 1),
    ("{n} = {f}.view(-1)", 1),
    ("{n} = {f}.reshape(8, 4)", 1),
    ("{n} = {f}.narrow(0, 1, 2)", 1),
    ("{n} = {f}.diagonal()", 1),
    ("{n} = {f}.detach()", 1),
    ("{n} = {f}.expand_as({g})", 1),
    ("{n} = {f}.flatten()[3:9]", 1),
    ("{n}, {m} = {f}.chunk(2, -1)", 2),
    ("{n}, {m} = {f}.split([1, 3])", 1),
    ("{n}, {m}, *_ = {f}.unbind(0)", 1),
    ("{n} = {f}.as_strided((2, 4), (1, 2))", 1),
)

WRITES: Sequence[Template] = (
    ("{f}[0].zero_()", 2),
    ("{f}[1:3] = {g}[1:3]", 2),
    ("{f}[:, :4] = {g}[:, :4]", 2),
    ("{f}[:, :4] += 1.0", 2),
    ("{f} += {g}", 2),
    ("{f}.add_({g})", 2),
    ("{f}.mul_(0.5)", 2),
    ("{f}.copy_({g})", 1),
    ("{f}.fill_(0.5)", 1),
    ("{f}.tanh_()", 1),
    ("{f}.clamp_(-1, 1)", 1),
    ("{f}[{b}] = 0.25", 1),
    ("{f}.masked_fill_({b}, -1.0)", 1),
    ("{f}.unsqueeze(0)[0, 1].add_(1.0)", 1),
    ("{f}.transpose(0, 1)[1].mul_(2.0)", 1),
    ("{f}.narrow(0, 1, 2).copy_({g}[:2])", 1),
    ("{f}.index_add_(0, {i} % {f}.shape[0], {g})", 1),
    ("{f}.index_copy_(0, torch.tensor([1, 0]), {g}[:2])", 1),
    ("{f}[{i} % {f}.shape[0]] = {g}", 1),
    ("torch.add({f}, {g}, out={h}[:])", 1),  # of another shape, it would resize {h}
    ("{f}.lerp_({g}, 0.5)", 1),
    ("for q in range(2): {f}[q] = {f}[q] * {g}[q]", 1),
    ("{f}.addmm_({g}, {h})", 1),
    ("self.stored.add_({f}.mean())", 1),
    ("self.stored[0] = {f}.mean()", 1),
    ("self.stored.mul_(0.5).add_({f}.reshape(-1)[:8].detach())", 1),
    ("self.calls += 1", 1),
)

DRAWS: Sequence[Template] = (
    ("{n} = F.dropout({f}, 0.3, True)", 1),
    ("{n} = {f} + torch.rand_like({f})", 1),
    ("{n} = torch.randn({f}.shape, dtype={f}.dtype) * 0.1 + {f}", 1),
    ("{n} = {f} * torch.bernoulli(torch.full_like({f}, 0.5))", 1),
    ("{n} = self.drop({f})", 1),
)

CASTS: Sequence[Template] = (
    ("{n} = {f}.to({g}.dtype)", 1),
    ("{n} = {f}.type_as(x)", 1),
    ("{n} = {f}.float()", 2),
    ("{n} = {f}.to(torch.bfloat16)", 1),
    ("{n} = {f}.double()", 1),
    ("{n} = {f}.half().to({f}.dtype)", 1),
    ("{n} = {f}.bfloat16() @ {g}.bfloat16()", 1),
    ("{n} = F.linear({f}.half(), self.tied.weight.half())", 1),
)

INTEGERS: Sequence[Template] = (
    ("{n} = {i} + 1", 1),
    ("{n} = ({i} * 3) % 4", 1),
    ("{n} = {i}.cumsum(0) // 2", 1),
    ("{n} = torch.arange({f}.shape[0])", 1),
    ("{n} = {f}.argmax(-1)", 1),
    ("{n} = {f}.long()", 1),
    ("{n} = {i}[:2]", 1),
    ("{n} = {i}.float()", 1),
    ("{n} = {i} * {f}.sum(-1)", 1),
    ("{n} = {i} > 1", 2),
    ("{n} = ({i} > 1)[:, None].expand(4, 8)", 2),
    ("{n} = {f} > 0", 2),
    ("{n} = {f} <= {g}", 1),
    ("{n} = ~{b}", 1),
    ("{n} = {b}.sum()", 1),
    ("{n} = torch.ones(4, 4).tril() > 0", 1),
    ("{i}[0] = 2", 1),
    ("{i} += 1", 1),
)

CONTROL: Sequence[Template] = (
    (
        (
            "{n} = cond({i}.sum() > 3, lambda p, q: torch.tanh(self.first(p)) + q, "
            "lambda p, q: p * torch.softmax(q, -1), ({f}, {g}))"
        ),
        1,
    ),
    (
        (
            "_, {n} = while_loop(lambda s, p: s < 3, "
            "lambda s, p: (s + 1, torch.tanh(self.first(p))), (torch.tensor(0), {f}))"
        ),
        1,
    ),
    (
        (
            "{m}, {n} = scan(lambda c, p: (torch.tanh(c + "
            "self.first(p)), (c * p).clone()), {f}[0].clone(), {g})"
        ),
        1,
    ),
    ("{n} = checkpoint(self.second, {f}, use_reentrant=False)", 1),
    ("if self.training: {f}.mul_(0.9)", 1),
    ("with torch.autocast('cpu'): {n} = self.second({f})", 1),
    ("with torch.autocast('cpu', enabled=False): {n} = self.first({f})", 1),
    ("{n} = {f} if torch.is_autocast_enabled('cpu') else {f} + 0.0", 1),
)

KINDS: Sequence[tuple[Sequence[Template], int]] = (
    (COMPUTE, 10),
    (VIEWS, 6),
    (WRITES, 10),
    (DRAWS, 1),
    (CASTS, 2),
    (INTEGERS, 3),
    (CONTROL, 1),
)

RETURNS = (
    "return {f}",
    "return {f}, {g}",
    "return {f}, {g}, {f}",
    "return {{'one': {f}, 'two': [{g}, None, 3]}}",
    "return Pair({f}, {g})",
    "return {f}, x",
    "return {f}, self.stored, {g}",
    "return [{f}, ({g}, {h})], {i}",
    "return {{'b': {f}, 'a': {b}, 'c': {f}}}",
    "return {f}, {f}[0], 'text', {g}.shape[0]",
    "return Record({f}, {g})",
    "return {all}",
    "return {all}",
    "return {all}",
)


class Pair(NamedTuple):
    """A named tuple that programs hand back."""

    one: Any
    two: Any


@dataclass
class Record:
    """A dataclass that programs hand back."""

    one: Any
    two: Any


torch.export.register_dataclass(Record, serialized_type_name="tests.Record")


class Block(nn.Module):
    """A part that writes to what it computed and gives back a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a view of a value that was written to in place."""
        h = self.inner(x)
        h[..., :2].mul_(0.5)
        return h[..., :].relu_()


def stored() -> torch.Tensor:
    """Return the buffer that programs read and write, as it is at first."""
    return torch.linspace(-1, 1, WIDTH)


class Parts(nn.Module):
    """The parameters, buffers and layers that programs use."""

    stored: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.first.weight
        self.norm = nn.LayerNorm(WIDTH)
        self.table = nn.Embedding(16, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.block = Block()
        self.kernel = nn.Parameter(torch.randn(ROWS, ROWS, 3) * 0.3)
        self.register_buffer("stored", stored())
        self.register_buffer("calls", torch.tensor(0))


def plain_cond(chosen: Any, yes: Any, no: Any, operands: Any) -> Any:
    """Run one branch, in Python."""
    return (yes if chosen else no)(*operands)


def plain_while(going: Any, body: Any, state: Any) -> Any:
    """Run a loop in Python."""
    while going(*state):
        state = body(*state)
    return state


def plain_scan(body: Any, carry: Any, rows: Any) -> Any:
    """Run a scan over the first dimension in Python."""
    made: list[Any] = []
    for row in rows:
        before = carry
        carry, one = body(before, row)
        if (carry.shape, carry.dtype) != (before.shape, before.dtype):
            message = "the captured operator refuses this, in some versions silently"
            raise RuntimeError(message)
        made.append(one)
    return carry, torch.stack(made)


NAMES: Mapping[str, Any] = {
    "F": F,
    "Pair": Pair,
    "Record": Record,
    "checkpoint": checkpoint,
    "torch": torch,
}
PLAIN = {"cond": plain_cond, "while_loop": plain_while, "scan": plain_scan}
"""Control flow in Python: what the captured operators are compared with."""
CAPTURED = {"cond": torch.cond, "while_loop": while_loop, "scan": scan}
DISCRETE = ("argmax", "long()", "> 0", "<=")


@dataclass
class Source:
    """The forward of a module, as lines of Python.

    Attributes:
        seed: The number that it was made from.
        lines: Statements; the last one returns.
        training: Whether it was grown in train mode with gradients.
    """

    seed: int
    lines: list[str] = field(default_factory=list[str])
    training: bool = False

    @property
    def text(self) -> str:
        """The forward as a function."""
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def forward(self, x, y, k):\n{body}"

    def build(self, *, plain: bool = False) -> nn.Module:
        """Return a module that runs the program, with its own weights.

        Args:
            plain: Whether branches and loops run in Python, which is never compiled.
        """
        name = f"<program {self.seed} {next(_BUILT)}>"
        lines = self.text.splitlines(keepends=True)
        linecache.cache[name] = (len(self.text), None, lines, name)
        space: dict[str, Any] = {**NAMES, **(PLAIN if plain else CAPTURED)}
        space["__name__"] = __name__
        exec(compile(self.text, name, "exec"), space)
        kind = type("Program", (Parts,), {"forward": space["forward"]})
        torch.manual_seed(self.seed)
        return kind().train(self.training)


_BUILT = count()


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return two float tensors ``[4, 8]`` and four integers."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, generator=draws)
    y = torch.randn(ROWS, WIDTH, generator=draws)
    return x, y, torch.randint(0, 4, (ROWS,), generator=draws)


@dataclass
class _Grower:
    """Grows one program by running each line that is proposed."""

    source: Source
    rng: random.Random
    module: nn.Module
    values: dict[str, Any]
    named: int = 0

    def grow(self, steps: int) -> None:
        tries = 0
        while len(self.source.lines) < steps and tries < 40 * steps:
            tries += 1
            (templates,) = self.rng.choices(*zip(*KINDS, strict=True))
            (template,) = self.rng.choices(*zip(*templates, strict=True))
            line = self._filled(template)
            if line and self._runs(line):
                self.source.lines.append(line)
        while not self.source.lines[-1].startswith("return"):
            line = self._filled(self.rng.choice(RETURNS))
            if line and self._runs(line.replace("return", "result =")):
                self.source.lines.append(line)

    def _filled(self, template: str) -> str:
        """Return the template with values in its places; empty if there are none."""
        floats = self._of(torch.is_floating_point)
        integers = self._of(lambda t: t.dtype == torch.int64 and t.dim() == 1)
        masks = self._of(lambda t: t.dtype == torch.bool)
        if ("{i}" in template and not integers) or ("{b}" in template and not masks):
            return ""
        recent = [*floats[-3:], *floats[-3:], *floats]
        places = {name: self.rng.choice(recent) for name in "fgh"}
        places["i"] = self.rng.choice(integers or [""])
        places["b"] = self.rng.choice(masks or [""])
        places["all"] = "[" + ", ".join(floats[-12:]) + "]"
        places["n"], places["m"] = f"v{self.named}", f"w{self.named}"
        return template.format(**places)

    def _of(self, accepts: Callable[[torch.Tensor], bool]) -> list[str]:
        tensors = ((k, v) for k, v in self.values.items() if torch.is_tensor(v))
        return [name for name, value in tensors if accepts(value)]

    def _runs(self, line: str) -> bool:
        """Run the line on copies that keep the aliases, and keep those if it is fit."""
        state = torch.get_rng_state()
        if any(mark in line for mark in DISCRETE) and not self._is_decided(line):
            return False
        before = (self.values, self.module)
        self.values, self.module = replayed(self.source, [*self.source.lines, line])
        if self.values and all(map(_fit, [*self.values.values(), self.module.stored])):
            self.named += 1
            return True
        self.values, self.module = before
        torch.set_rng_state(state)
        return False

    def _is_decided(self, line: str) -> bool:
        """Whether the line gives the same for operands that are a few percent off."""
        found: list[Any] = []
        for number in range(6):
            space = {**NAMES, **PLAIN, "self": self.module, **self.values}
            draws = torch.Generator().manual_seed(number)
            for name, held in self.values.items():
                if torch.is_tensor(held) and held.is_floating_point() and number:
                    value = held.detach()
                    noise = torch.randn(value.shape, generator=draws).to(value.dtype)
                    space[name] = value + 0.04 * noise * (value.abs().mean() + 0.02)
            try:
                with torch.no_grad():
                    exec(line, space)
            except (RuntimeError, IndexError, TypeError, ValueError):
                return False
            found.append(space[line.split(" = ", maxsplit=1)[0]])
        return all(torch.equal(found[0], other) for other in found)


def _fit(value: Any) -> bool:
    """Whether a value may stay: small, finite, and not long."""
    if not torch.is_tensor(value):
        return True
    held = value.detach()
    if not 0 < held.numel() <= 512:
        return False
    return bool(held.isfinite().all()) and float(held.double().abs().max()) < LARGEST


def replayed(source: Source, lines: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """Return the local values after ``lines`` and the module; no values on an error."""
    module = Source(source.seed, [*lines, "return locals()"], source.training)
    module = module.build(plain=True)
    x, y, k = inputs(source.seed)
    torch.manual_seed(source.seed)
    try:
        with torch.set_grad_enabled(source.training):
            found = module(x, y, k)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return {}, module
    return {name: v for name, v in found.items() if name not in ("self", "_")}, module


def program(seed: int, *, training: bool = False) -> Source:
    """Return a random program of 5 to 40 lines."""
    rng = random.Random(seed)
    source = Source(seed, training=training)
    values, module = replayed(source, [])
    grower = _Grower(source, rng, module, values)
    grower.grow(rng.randint(5, 40))
    return source


def leaves(output: Any) -> list[Any]:
    """Return the leaves of an output, None and text among them."""
    return pytree.tree_leaves(output)

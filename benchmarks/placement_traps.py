"""Nine small programs in which painting puts casts at the wrong place.

Known from TensorFlow 2.21, whose algorithm is placement ``paint``. What is best was
found by hand; ``casts`` says it: which value is cast at run time to what. Sizes are
such that a contraction is worth its casts, but for the last.
"""

from dataclasses import dataclass
from textwrap import dedent

from amprewrite.ir import ProgramGraph, check_graph, parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, load_policy


@dataclass(frozen=True)
class Trap:
    """A program and its best casts.

    Attributes:
        name: What it is, in short.
        text: The program.
        casts: The best casts at run time: ``value to dtype``.
        why: Why nothing else is as good.
    """

    name: str
    text: str
    casts: frozenset[str]
    why: str

    @property
    def graph(self) -> ProgramGraph:
        """The program as a graph."""
        return check_graph(parse_graph(dedent(self.text).strip()))

    def plan(self, placement: str) -> Plan:
        """Return the plan under bf16."""
        matcher = Matcher(load_policy("bf16"))
        return make_plan(self.graph, matcher, Setting(placement))


def runtime_casts(plan: Plan) -> frozenset[str]:
    """Return the casts of a plan as a trap states them."""
    return frozenset(f"{c.value} to {c.to_dtype}" for c in plan.runtime_casts)


def _trap(name: str, casts: str, why: str, text: str) -> Trap:
    found = (line.strip() for line in casts.split(","))
    words = {"low": "bfloat16", "full": "float32"}
    named = (" to ".join((c.split()[0], words[c.split()[1]])) for c in found if c)
    return Trap(name, text, frozenset(named), why)


TRAPS = (
    _trap(
        "matmul [N,1], tile to [N,N], exp",
        "x low, c full",
        "a cast before the tile converts N elements, after it N^2",
        """
        %x: f32[256,1024] input
        %w: f32[1024,1024] parameter
        %u: f32[1024,1] parameter
        first = matmul(%x, %w) -> %h: f32[256,1024]
          | contracted=1024
        second = matmul(%h, %u) -> %c: f32[256,1]
          | contracted=1024
        tile = tile(%c) -> %t: f32[256,256]
        exp = exp(%t) -> %y: f32[256,256]
        return %y
        """,
    ),
    _trap(
        "exp [N,N], slice [1,N], matmul",
        "s low, y full",
        "a cast after the slice converts N elements, before it N^2",
        """
        %x: f32[256,256] input
        %w: f32[256,4096] parameter
        exp = exp(%x) -> %e: f32[256,256]
        slice = slice(%e) -> %s: f32[1,256]
        matmul = matmul(%s, %w) -> %y: f32[1,4096]
          | contracted=256
        return %y
        """,
    ),
    _trap(
        "matmul, bias, relu, tanh, max, output",
        "x low, m full",
        "all but the output may be low, and the maximum has N elements instead of N^2",
        """
        %x: f32[512,512] input
        %w: f32[512,512] parameter
        %b: f32[512] parameter
        matmul = matmul(%x, %w) -> %h: f32[512,512]
          | contracted=512
        add = add(%h, %b) -> %a: f32[512,512]
          | operand_rule="promote"
        relu = relu(%a) -> %r: f32[512,512]
        tanh = tanh(%r) -> %t: f32[512,512]
        amax = amax(%t) -> %m: f32[512]
        return %m
        """,
    ),
    _trap(
        "matmul, then its mean subtracted, relu, matmul",
        "x low, m low, y full",
        "the mean casts what it reads in its kernel; its result has N elements",
        """
        %x: f32[512,512] input
        %w: f32[512,512] parameter
        %u: f32[512,512] parameter
        first = matmul(%x, %w) -> %h: f32[512,512]
          | contracted=512
        mean = mean(%h) -> %m: f32[512,1]
          | has_dtype_argument=true
        sub = sub(%h, %m) -> %d: f32[512,512]
          | operand_rule="promote"
        relu = relu(%d) -> %r: f32[512,512]
        second = matmul(%r, %u) -> %y: f32[512,512]
          | contracted=512
        return %y
        """,
    ),
    _trap(
        "matmul, split in 4, 4 exp",
        "x low, h full",
        "one cast before the split instead of four of the same bytes",
        """
        %x: f32[512,512] input
        %w: f32[512,512] parameter
        matmul = matmul(%x, %w) -> %h: f32[512,512]
          | contracted=512
        split = split(%h) -> %a: f32[512,128] alias %h; %b: f32[512,128] alias %h; \
%c: f32[512,128] alias %h; %d: f32[512,128] alias %h
        exp0 = exp(%a) -> %p: f32[512,128]
        exp1 = exp(%b) -> %q: f32[512,128]
        exp2 = exp(%c) -> %r: f32[512,128]
        exp3 = exp(%d) -> %s: f32[512,128]
        return %p, %q, %r, %s
        """,
    ),
    _trap(
        "4 exp, concat, matmul",
        "k low, y full",
        "one launch instead of four is worth a concat in full, while it is small",
        """
        %a: f32[64,64] input
        %b: f32[64,64] input
        %c: f32[64,64] input
        %d: f32[64,64] input
        %w: f32[64,2048] parameter
        exp0 = exp(%a) -> %p: f32[64,64]
        exp1 = exp(%b) -> %q: f32[64,64]
        exp2 = exp(%c) -> %r: f32[64,64]
        exp3 = exp(%d) -> %s: f32[64,64]
        cat = cat(%p, %q, %r, %s) -> %k: f32[256,64]
        matmul = matmul(%k, %w) -> %y: f32[256,2048]
          | contracted=64
        return %y
        """,
    ),
    _trap(
        "matmul, {reshape, exp}, {transpose, exp}",
        "x low, h full",
        "one cast serves both: data movement is exact under it",
        """
        %x: f32[512,512] input
        %w: f32[512,512] parameter
        matmul = matmul(%x, %w) -> %h: f32[512,512]
          | contracted=512
        reshape = reshape(%h) -> %r: f32[262144] alias %h
        transpose = transpose(%h) -> %t: f32[512,512] alias %h
        exp0 = exp(%r) -> %p: f32[262144]
        exp1 = exp(%t) -> %q: f32[512,512]
        return %p, %q
        """,
    ),
    _trap(
        "exp at the stem of a residual stream",
        "s0 low, y full",
        "what was full once need not be full for ever: one cast instead of one a layer",
        """
        %x: f32[512,512] input
        %w1: f32[512,512] parameter
        %w2: f32[512,512] parameter
        %w3: f32[512,512] parameter
        %w4: f32[512,512] parameter
        %w5: f32[512,8] parameter
        exp = exp(%x) -> %s0: f32[512,512]
        linear1 = linear(%s0, %w1) -> %h1: f32[512,512]
          | contracted=512
        add1 = add(%s0, %h1) -> %s1: f32[512,512]
          | operand_rule="promote"
        linear2 = linear(%s1, %w2) -> %h2: f32[512,512]
          | contracted=512
        add2 = add(%s1, %h2) -> %s2: f32[512,512]
          | operand_rule="promote"
        linear3 = linear(%s2, %w3) -> %h3: f32[512,512]
          | contracted=512
        add3 = add(%s2, %h3) -> %s3: f32[512,512]
          | operand_rule="promote"
        linear4 = linear(%s3, %w4) -> %h4: f32[512,512]
          | contracted=512
        add4 = add(%s3, %h4) -> %s4: f32[512,512]
          | operand_rule="promote"
        head = linear(%s4, %w5) -> %y: f32[512,8]
          | contracted=512
        return %y
        """,
    ),
    _trap(
        "exp, tiny matmul, exp",
        "",
        "two casts of 16,384 elements cost more than 65,536 multiplications save",
        """
        %x: f32[4096,4] input
        %w: f32[4,4] parameter
        exp = exp(%x) -> %e: f32[4096,4]
        matmul = matmul(%e, %w) -> %h: f32[4096,4]
          | contracted=4
        again = exp(%h) -> %y: f32[4096,4]
        return %y
        """,
    ),
)
"""The traps, in the order of the study that found them."""

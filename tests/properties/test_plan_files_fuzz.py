"""Plan and policy files of every kind: applied and visible, or a named error."""

import json
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

import amprewrite
from amprewrite.errors import AmpError, AmpWarning
from amprewrite.plan import Plan
from amprewrite.plan.validation.maker import policy_digest
from tests.fuzzing import seeds
from tests.plan_text import plan_of
from tests.properties.hostile import mutated, scrambled

SHORT, LONG = 100, 5_000

SAME_PROGRAM = {"derivative_accumulator", "accumulator", "op_class"}
"""Fields of decisions of which two values may mean one program: a class that computes
in the same precision, sums handed over in the dtype that they have anyway."""

DECIDES = ("precision", "operands", "results", "accumulator", "derivative")


def deciding(plan: Plan) -> Any:
    """What of a plan decides about the program, without the words for people."""
    decisions = [[getattr(d, name) for name in DECIDES] for d in plan.decisions]
    casts = sorted(
        (c.value, c.from_dtype, c.to_dtype, sorted(c.uses), c.folding, c.saturate)
        for c in plan.casts
    )
    return decisions, casts, sorted(plan.storage), plan.outputs


@dataclass
class Case(ABC):
    """A model, and how its conversion is looked at."""

    model: Any
    args: tuple[Any, ...]
    placement: str = "promote"

    def converted(self, plan: Plan | None = None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AmpWarning)
            placement = None if plan else self.placement
            return amprewrite.convert(
                self.model, args=self.args, plan=plan, placement=placement
            )

    @abstractmethod
    def program(self, converted: Any) -> str:
        """Call what was converted, and return the program that ran."""


class Torch(Case):
    def program(self, converted: Any) -> str:
        args = self.args
        converted(*args)  # never an error at the call
        state = {k: v.dtype for k, v in converted.state_dict().items()}
        return f"{converted.rewritten.graph}{state}"


class Jax(Case):
    def program(self, converted: Any) -> str:
        args = self.args
        import jax

        converted(*args)
        gradient = jax.grad(lambda *a: converted(*a).sum(), range(len(args)))
        return f"{jax.make_jaxpr(converted)(*args)}{jax.make_jaxpr(gradient)(*args)}"


def torch_cases() -> list[Case]:
    torch = pytest.importorskip("torch")
    from torch import nn

    from tests.torch_programs import Program

    def forward(m: Any, x: Any) -> Any:
        h = torch.relu(m.norm(m.a(x)))
        return torch.softmax(m.b(h) + x, -1).sum(-1), h @ m.a.weight

    def model() -> Any:
        torch.manual_seed(0)
        parts = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}
        return Program(forward, **parts)

    x = (torch.linspace(-1, 1, 32).reshape(4, 8),)
    return [Torch(model().eval(), x), Torch(model(), x, "optimal")]


def jax_cases() -> list[Case]:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def fun(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w) + jnp.einsum("i,j->ij", x[:, 0], w[0])
        return jax.nn.softmax(h @ w)

    x, w = jnp.linspace(-1, 1, 32).reshape(4, 8), jnp.eye(8)
    return [Jax(fun, (x, w)), Jax(fun, (x, w), "optimal")]


@pytest.fixture(scope="module", params=["torch", "jax"])
def known(request: Any) -> list[tuple[Any, Plan, dict[str, Any], str]]:
    """Cases with their plans, their JSON, and the programs that these make."""
    found: list[tuple[Any, Plan, dict[str, Any], str]] = []
    for case in torch_cases() if request.param == "torch" else jax_cases():
        plan = case.converted().plan
        program = case.program(case.converted(plan))
        found.append((case, plan, json.loads(json.dumps(plan.to_json())), program))
    return found


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
def test_a_plan_is_applied_as_it_says_or_refused(known: Any, tmp_path: Any) -> None:
    """Many mutations in one test: most are refused in a millisecond."""
    applied = refused = 0
    for seed in seeds(SHORT, LONG):
        random = Random(seed)
        case, plan, data, program = random.choice(known)
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(mutated(data, random)), "utf-8")
        try:
            changed = Plan.load(path)
            converted = case.converted(changed)
        except AmpError as error:
            refused += bool(str(error))
            continue
        applied += 1
        assert converted.plan.to_json() == changed.to_json(), seed
        same = case.program(converted) == program
        assert same == (deciding(changed) == deciding(plan)) or _may_be_one(
            changed, plan
        ), f"seed {seed}: {plan.diff(changed)}"
    assert applied
    assert applied + refused == len(seeds(SHORT, LONG))


def _may_be_one(changed: Plan, plan: Plan) -> bool:
    """Whether two plans differ only where two values may mean one program."""
    lines = plan.diff(changed)
    return bool(lines) and all(
        any(f": {name} " in line for name in SAME_PROGRAM) for line in lines
    )


GRAPH = """%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | native="aten.linear.default" path="body.0"
softmax = softmax(%h) -> %s: f32[4,8]
return %s
"""

POLICY = """extends = "bf16"
description = "a policy of one's own"
[dtypes]
low = "bfloat16"
full = "float32"
output = "as-traced"
[placement]
demand = true
weak_parameters = false
lookups = "full"
[promotion]
system = ""
truncate_complex = false
[ops]
softmax = { class = "deny", why = "exp and a sum" }
tanh = "promote"
[[rules]]
path = "body.*"
op = "linear"
class = "allow"
why = "a rule"
"""


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
def test_a_policy_is_read_as_it_says_or_refused(tmp_path: Any) -> None:
    path = tmp_path / "mine.toml"
    read = refused = 0
    for seed in seeds(400, 20_000):
        random = Random(seed)
        path.write_text(scrambled(POLICY, random), "utf-8")
        try:
            policy = amprewrite.load_policy(path)
            plan = plan_of(GRAPH, policy)
        except AmpError as error:
            refused += "policy" in str(error)
            continue
        read += 1
        assert plan.policy_digest == policy_digest(policy), seed
        assert (plan.low, plan.full) == (policy.low, policy.full), seed
    assert read
    assert read + refused == len(seeds(400, 20_000))

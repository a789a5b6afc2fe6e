"""Programs in which painting puts casts at the wrong place, and what is best."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import amprewrite
from amprewrite.passes.cost.cost import Objective
from benchmarks.placement_traps import TRAPS, Trap, runtime_casts
from tests.properties.placements import Case, brute_force

ROOT = Path(__file__).parents[2]

IDS = [trap.name for trap in TRAPS]


@pytest.mark.parametrize("trap", TRAPS, ids=IDS)
def test_optimal_finds_what_is_best_by_hand(trap: Trap) -> None:
    plan = trap.plan("optimal")
    assert runtime_casts(plan) == trap.casts
    assert plan.cost.lower_bound == plan.cost.total_bytes


@pytest.mark.parametrize("trap", TRAPS, ids=IDS)
def test_what_is_best_by_hand_is_best_of_all(trap: Trap) -> None:
    policy = amprewrite.load_policy("bf16")
    case = Case(trap.graph, policy, training=False, objective=Objective())
    assert brute_force(case) == trap.plan("optimal").cost.total_bytes


@pytest.mark.parametrize("trap", TRAPS, ids=IDS)
@pytest.mark.parametrize("placement", ["promote", "paint"])
def test_no_placement_beats_the_certificate(trap: Trap, placement: str) -> None:
    best, other = trap.plan("optimal").cost, trap.plan(placement)
    assert best.lower_bound is not None
    assert best.lower_bound <= other.cost.total_bytes
    if runtime_casts(other) != trap.casts:  # no other casts are as good
        assert best.lower_bound < other.cost.total_bytes


def test_a_large_concat_is_rather_low_than_cast_once() -> None:
    """The trade between launches and bytes: above 110 x 110 the bytes win."""
    (trap,) = (trap for trap in TRAPS if trap.name.startswith("4 exp"))
    large = Trap(trap.name, trap.text.replace("64,64]", "256,64]"), trap.casts, "")
    text = large.text.replace("%k: f32[256,64]", "%k: f32[1024,64]")
    text = text.replace("%y: f32[256,2048]", "%y: f32[1024,2048]")
    plan = Trap(trap.name, text, trap.casts, "").plan("optimal")
    assert {c.value for c in plan.runtime_casts} == {*"pqrs", "y"}


SCRIPT = """
import json
from benchmarks.placement_traps import TRAPS
from tests.properties.test_placements import plan_for, random_case
plans = [trap.plan("optimal").to_json() for trap in TRAPS]
for seed in range(20):
    case = random_case(seed, 30)
    plan = plan_for(case.graph, case.policy, "optimal", training=case.training)
    plans.append(plan.to_json())
print(json.dumps(plans))
"""


@pytest.mark.slow
def test_another_seed_of_hashes_gives_the_same_plans() -> None:
    texts: list[str] = []
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1] == texts[2]
    assert len(json.loads(texts[0])) == len(TRAPS) + 20


# --- the same in torch ---------------------------------------------------------------


def torch_models():  # noqa: C901  # five models, each of one line or two
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear

    class Tile(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.thin = linear(1024, 1024), linear(1024, 1)

        def forward(self, x):
            return torch.exp(torch.tanh(self.thin(self.wide(x))).repeat(1, 256))

    class Slice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = linear(256, 4096, bias=False)

        def forward(self, x):
            return self.head(torch.exp(x)[:1])

    class Views(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = linear(512, 512, bias=False)

        def forward(self, x):
            h = self.mix(x)
            return torch.exp(h.reshape(-1)), torch.exp(h.transpose(0, 1))

    class Stream(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(linear(512, 512) for _ in range(4))
            self.head = linear(512, 8)

        def forward(self, x):
            stream = torch.exp(x)
            for layer in self.layers:
                stream = stream + layer(stream)
            return self.head(stream)

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = linear(4, 4, bias=False)

        def forward(self, x):
            return torch.exp(self.mix(torch.exp(x)))

    return {
        "tile": (Tile, (256, 1024), 256 * 1024 + 256),
        "slice": (Slice, (256, 256), 256 + 4096),
        "views": (Views, (512, 512), 2 * 512 * 512),
        "stream": (Stream, (512, 512), 512 * 512 + 512 * 8),
        "tiny": (Tiny, (4096, 4), 0),
    }


@pytest.mark.filterwarnings("ignore:rewritten 0 of 3 ops")  # the tiny one stays full
@pytest.mark.parametrize("name", ["tile", "slice", "views", "stream", "tiny"])
def test_a_torch_model_casts_as_few_elements_as_can_be(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, shape, elements = torch_models()[name]
    model, args = make().eval(), (torch.rand(shape) / 8,)
    converted = amprewrite.convert(model, args=args, placement="optimal")
    cost = converted.plan.cost
    assert cost.cast_elements == elements
    assert cost.lower_bound == cost.total_bytes
    for other in ("promote", "paint"):
        plan = amprewrite.inspect(model, args=args, placement=other)
        assert plan.cost.total_bytes >= cost.total_bytes
    report = amprewrite.verify(model, converted, args)
    assert report is not None
    with torch.no_grad():
        found, wanted = converted(*args), model(*args)
    for got, want in zip(
        *((x if isinstance(x, tuple) else (x,)) for x in (found, wanted)), strict=True
    ):
        assert got.dtype == want.dtype
        assert torch.linalg.norm(got - want) <= 0.05 * torch.linalg.norm(want)


@pytest.mark.parametrize("placement", ["paint", "optimal"])
@pytest.mark.parametrize("target", ["eager", "compiled"])
def test_every_placement_and_target_plans_a_trained_model(
    placement: str, target: str
) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(256, 256),
    )
    args = (torch.randn(512, 256),)
    plan = amprewrite.inspect(
        model, args=args, placement=placement, target=target, training=True
    )
    assert plan.lowered
    assert plan.storage == ()
    assert any(cast.is_weight for cast in plan.runtime_casts)

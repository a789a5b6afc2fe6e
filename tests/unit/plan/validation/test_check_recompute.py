"""An edited region that cannot be applied is refused."""

from dataclasses import replace

import pytest

from amprewrite.ir import parse_graph
from amprewrite.plan.fields import Kept, Recompute, RecomputedRegion
from amprewrite.plan.validation.check import recompute_mistakes
from tests.plan_text import SMALL, plan_of


def _region(*ops: str) -> Recompute:
    return Recompute(regions=(RecomputedRegion(ops, ()),))


@pytest.mark.parametrize(
    ("training", "found", "said"),
    [
        (True, _region("exp"), ""),
        (True, _region("linear"), "linear (linear) must not run twice"),
        (True, _region("gone"), "the program has no op 'gone'"),
        (True, _region(), "has no ops"),
        (False, _region("exp"), "in a plan for inference"),
        (True, Recompute(kept=(Kept("gone", "float32"),)), "keeps %gone"),
    ],
)
def test_a_mistake_is_named(found: Recompute, said: str, *, training: bool) -> None:
    graph = parse_graph(SMALL.strip())
    plan = replace(plan_of(SMALL, training=training), recompute=found)
    mistakes = list(recompute_mistakes(graph, plan))
    assert (said in mistakes[0]) if said else not mistakes

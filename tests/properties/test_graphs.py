"""What holds for every graph and every plan, on random ones."""

import json
from collections import Counter
from dataclasses import replace
from random import Random

import networkx as nx
from hypothesis import assume, given
from hypothesis import strategies as st

from amprewrite.ir import Op, ProgramGraph, check_graph, parse_graph, print_graph
from amprewrite.passes import make_plan
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.demand import Demand, compute_demand
from amprewrite.passes.pipeline import Setting, output_dtypes, prepare
from amprewrite.passes.placement.promote import place, place_with_storage
from amprewrite.plan import OUTPUT, Plan
from amprewrite.policy import Matcher, Policy, load_policy
from tests.properties.graphs import (
    OPS,
    float_results,
    follow,
    full_operands,
    graphs,
    on_the_spot,
    policies,
)

trainings = st.booleans()


def plan_for(graph: ProgramGraph, policy: Policy, *, training: bool = False) -> Plan:
    return make_plan(graph, Matcher(policy), Setting(keep_parameter_dtype=training))


def test_the_table_of_ops_agrees_with_the_policy() -> None:
    known = load_policy("bf16").ops
    for op_class, names in OPS.items():
        for name in names:
            if name not in ("cast", "unknown"):
                assert known[name].op_class == op_class, name


@given(graphs())
def test_a_random_graph_keeps_the_invariants(graph: ProgramGraph) -> None:
    assert check_graph(graph) is graph


@given(graphs())
def test_a_printed_graph_parses_to_the_same_graph(graph: ProgramGraph) -> None:
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert print_graph(again) == print_graph(graph)


@given(graph=graphs(), policy=policies(), training=trainings)
def test_a_printed_graph_has_the_same_plan(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    again = parse_graph(print_graph(graph))
    assert plan_for(again, policy, training=training) == plan_for(
        graph, policy, training=training
    )


@given(graph=graphs(), policy=policies(), training=trainings)
def test_every_operand_arrives_in_the_dtype_it_is_read_in(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    plan = plan_for(graph, policy, training=training)
    followed = follow(graph, plan)
    for op in graph.ops:
        wanted = plan.by_op[op.name].operands
        for index, name in enumerate(op.operands):
            assert followed.reaching(op.name, index, name) == wanted[index], op.name


@given(graph=graphs(), policy=policies(), training=trainings)
def test_every_output_leaves_in_the_dtype_that_the_policy_says(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    plan = plan_for(graph, policy, training=training)
    followed = follow(graph, plan)
    wanted = output_dtypes(graph, policy)
    for index, name in enumerate(graph.outputs):
        have = followed.stored[name]
        for cast in plan.casts:
            if cast.value == name and (OUTPUT, index) in cast.uses:
                assert cast.from_dtype == have
                have = cast.to_dtype
        assert have == wanted[index]


@given(graph=graphs(), policy=policies(), training=trainings)
def test_a_cast_is_made_once_for_all_who_can_share_it(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    plan = plan_for(graph, policy, training=training)
    versions: Counter[str] = Counter()
    at: dict[tuple[str, str], int] = {}
    for op in graph.ops:
        at.update(
            {(op.name, name): versions[graph.storage(name)] for name in op.operands}
        )
        versions.update(graph.storage(op.operands[i]) for i in op.mutates)
    at.update({(OUTPUT, name): versions[graph.storage(name)] for name in graph.outputs})
    keys = [
        (c.value, c.to_dtype, c.region, at[c.uses[0][0], c.value], c.saturate)
        for c in plan.runtime_casts
        if not on_the_spot(c)
    ]
    assert len(keys) == len(set(keys))


@given(graph=graphs(), policy=policies(), training=trainings)
def test_a_cast_serves_one_version_of_its_value(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    place = {op.name: number for number, op in enumerate(graph.ops)}
    place[OUTPUT] = len(graph.ops)
    writes = [
        (number, graph.storage(op.operands[i]))
        for number, op in enumerate(graph.ops)
        for i in op.mutates
    ]
    for cast in plan_for(graph, policy, training=training).casts:
        if cast.folded or on_the_spot(cast):
            continue
        first, last = (f(place[op] for op, _ in cast.uses) for f in (min, max))
        between = [n for n, s in writes if first <= n < last]
        storages = {s for n, s in writes if n in between}
        assert graph.storage(cast.value) not in storages


@given(graph=graphs(), policy=policies(), training=trainings)
def test_no_cast_goes_from_a_dtype_to_itself(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    for cast in plan_for(graph, policy, training=training).casts:
        assert cast.from_dtype != cast.to_dtype
        assert cast.uses or on_the_spot(cast)
        never = 0 in cast.shape or cast.trips == 0
        assert (cast.bytes == 0) == (cast.folded or never)


@given(graph=graphs(), policy=policies(), training=trainings)
def test_a_deny_op_reads_nothing_low(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    plan = plan_for(graph, policy, training=training)
    for op in graph.ops:
        decision = plan.by_op[op.name]
        if decision.op_class == "deny":
            read = {decision.operands[i] for i in full_operands(graph, op, policy.full)}
            assert read <= {policy.full}


@given(graph=graphs(), policy=policies(), training=trainings)
def test_a_kept_op_gives_what_it_was_traced_with(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    plan = plan_for(graph, policy, training=training)
    for op in graph.ops:
        decision = plan.by_op[op.name]
        if decision.op_class == "keep" and op.canonical not in (
            "cast",
            "full",
            "zeros_like",
        ):
            traced = tuple(graph.values[name].dtype for name in op.results)
            written = {graph.storage(op.operands[i]) for i in op.mutates}
            for name, dtype, have in zip(
                op.results, traced, decision.results, strict=True
            ):
                assert have == dtype or graph.storage(name) in written


@given(graph=graphs(), policy=policies(), training=trainings)
def test_other_dtypes_than_full_never_change(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    plan = plan_for(graph, policy, training=training)
    followed = follow(graph, plan)
    for name, value in graph.values.items():
        if value.dtype != policy.full:
            assert followed.stored[name] == value.dtype


@given(graph=graphs(), policy=policies(), training=trainings)
def test_all_views_of_a_written_storage_are_kept_in_one_dtype(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    """A view in another dtype is a copy: what is written to it would be lost."""
    plan = plan_for(graph, policy, training=training)
    stored = follow(graph, plan).stored
    for op in graph.ops:
        for index in op.mutates:
            root = graph.storage(op.operands[index])
            views = [v.name for v in graph.values.values() if v.alias == root]
            kept = {stored[v] for v in views if graph.is_dtype(v, policy.full)}
            assert len(kept) <= 1, f"{root}: {kept}"


@given(graphs(), policies())
def test_what_makes_an_exact_argument_is_never_low(
    graph: ProgramGraph, policy: Policy
) -> None:
    assume(not any(op.mutates for op in graph.ops))
    policy = replace(policy, demand=True)
    classes = classify(graph, Matcher(policy))
    outputs = output_dtypes(graph, policy)
    pairs = zip(graph.outputs, outputs, strict=True)
    full = [name for name, dtype in pairs if dtype == policy.full]
    demands = compute_demand(graph, classes, full)
    plan = plan_for(graph, policy)
    for op in graph.ops:
        if classes[op.name].op_class == "keep":
            continue
        if demands.on_op(op) is Demand.EXACT:
            made = plan.by_op[op.name].results
            low = [i for i in float_results(graph, op) if made[i] == policy.low]
            assert all(graph.is_dtype(op.results[i], policy.low) for i in low), op.name


@given(graph=graphs(), training=trainings)
def test_the_policy_off_changes_nothing(graph: ProgramGraph, *, training: bool) -> None:
    plan = plan_for(graph, load_policy("off"), training=training)
    assert plan.casts == plan.storage == plan.lowered == ()
    for op in graph.ops:
        decision = plan.by_op[op.name]
        assert decision.operands == tuple(graph.values[n].dtype for n in op.operands)
        assert decision.results == tuple(graph.values[n].dtype for n in op.results)


@given(graph=graphs(), policy=policies(), training=trainings)
def test_placing_twice_gives_the_same_plan(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    assert plan_for(graph, policy, training=training) == plan_for(
        graph, policy, training=training
    )


@given(graphs(), policies(), st.randoms(use_true_random=False))
def test_the_order_of_independent_ops_changes_no_cast(
    graph: ProgramGraph, policy: Policy, random: Random
) -> None:
    assume(not any(op.mutates for op in graph.ops))
    shuffled = replace(graph, ops=_reordered(graph, random))
    one, two = plan_for(graph, policy), plan_for(check_graph(shuffled), policy)
    assert {d.op: d.precision for d in one.decisions} == {
        d.op: d.precision for d in two.decisions
    }

    def kinds(plan: Plan) -> Counter[tuple[object, ...]]:
        return Counter(
            (c.value, c.to_dtype, c.folding, c.region, frozenset(c.uses))
            for c in plan.casts
        )

    assert kinds(one) == kinds(two)


def _reordered(graph: ProgramGraph, random: Random) -> tuple[Op, ...]:
    weights = {op.name: random.random() for op in graph.ops}
    order = nx.lexicographical_topological_sort(graph.network, key=weights.__getitem__)
    return tuple(graph.op_by_name[name] for name in order)


@given(graphs(), policies())
def test_the_json_of_a_plan_is_the_plan(graph: ProgramGraph, policy: Policy) -> None:
    plan = plan_for(graph, policy)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(graphs(), policies())
def test_a_plan_explains_all_its_ops(graph: ProgramGraph, policy: Policy) -> None:
    plan = plan_for(graph, policy)
    for decision in plan.decisions:
        assert decision.op in plan.explain(decision.op)
        assert decision.why
    assert plan.diff(plan) == ()
    assert plan.summary()


@given(graph=graphs(), policy=policies())
def test_when_training_no_parameter_is_stored_low(
    graph: ProgramGraph, policy: Policy
) -> None:
    plan = plan_for(graph, policy, training=True)
    assert not any(c.is_weight for c in plan.casts if c.folding == "storage")
    assert all(graph.values[name].kind == "result" for name, _ in plan.storage)


@given(graph=graphs(), policy=policies(), training=trainings)
def test_a_walk_that_takes_over_what_was_decided_ends_as_a_fresh_one(
    graph: ProgramGraph, policy: Policy, *, training: bool
) -> None:
    setting = Setting(keep_parameter_dtype=training)
    at = prepare(graph, Matcher(policy), setting).situation
    fresh = place_with_storage(
        at, keep_parameter_dtype=training, placer=lambda tried, _: place(tried)
    )
    assert place_with_storage(at, keep_parameter_dtype=training) == fresh

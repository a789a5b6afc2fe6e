"""What each value is wanted in by those who read it, backwards."""

from textwrap import dedent

import pytest

from amprewrite.ir import ProgramGraph, parse_graph
from amprewrite.ops import op_table
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.demand import Demand, Demands, compute_demand
from amprewrite.policy import Matcher, load_policy
from tests.plan_text import plan_of

ANY, FULL, TESTED, EXACT = Demand


def demanded(text: str, *outputs: str) -> tuple[ProgramGraph, Demands]:
    graph = parse_graph(dedent(text).strip())
    classes = classify(graph, Matcher(load_policy("bf16")))
    return graph, compute_demand(graph, classes, outputs)


CHAIN = """
%x: f32[4] input
square = square(%x) -> %q: f32[4]
neg = neg(%q) -> %n: f32[4]
{last} = {last}(%n) -> %y: f32[4]
return %y
"""


@pytest.mark.parametrize(
    ("last", "demand"),
    [
        ("mean", FULL),
        ("tanh", ANY),
        ("matmul", ANY),
        ("avg_pool2d", ANY),
        ("add", ANY),
        ("floor", EXACT),
    ],
)
def test_demand_passes_through_ops_that_combine_and_move(
    last: str, demand: Demand
) -> None:
    _, demands = demanded(CHAIN.format(last=last))
    assert [demands.on(v) for v in "nqx"] == [demand] * 3


STEPPING = [name for name, its in op_table().ops.items() if its.exact_argument]


@pytest.mark.parametrize("op", STEPPING)
def test_periodic_and_stepping_ops_want_an_exact_argument(op: str) -> None:
    place = op_table().ops[op].exact_from
    operands = ", ".join(["%n"] * (place + 1))
    text = CHAIN.format(last=op).replace("(%n) -> %y", f"({operands}) -> %y")
    _, demands = demanded(text)
    assert demands.on("x") is EXACT


def test_an_image_is_read_at_exact_positions_and_need_not_be_exact() -> None:
    _, demands = demanded("""
        %x: f32[1,1,4,4] input
        %p: f32[1,4,4,2] input
        neg = neg(%x) -> %n: f32[1,1,4,4]
        neg_1 = neg(%p) -> %q: f32[1,4,4,2]
        read = grid_sampler(%n, %q) -> %y: f32[1,1,4,4]
        return %y
    """)
    assert (demands.on("x"), demands.on("p")) == (FULL, EXACT)


LINEAR = (
    *("matmul", "conv", "conv_transpose", "einsum", "add", "sub", "mul", "div", "neg"),
    *("sum", "mean", "cumsum", "cdist", "linalg_vector_norm", "sqrt", "square", "amax"),
    *("upsample_linear1d", "avg_pool2d", "clamp", "where", "fft_fft", "exp", "pow"),
    *("reshape", "scatter_add", "psum", "boundary", "carry", "enter", "leave", "cast"),
)


@pytest.mark.parametrize("op", LINEAR)
def test_what_makes_an_exact_argument_is_made_of_exact_values(op: str) -> None:
    facts = '| dtype_argument="float32" operand_rule="any"' if op == "cast" else ""
    graph, demands = demanded(f"""
        %x: f32[4] input
        step = {op}(%x) -> %a: f32[4]
          {facts or "| trips=1"}
        sin = sin(%a) -> %s: f32[4]
        return %s
    """)
    assert (demands.on("a"), demands.on("x")) == (EXACT, EXACT)
    assert demands.path(graph, graph.op_by_name["step"]) == ("sin",)


BENT = [name for name, its in op_table().ops.items() if its.bends]


@pytest.mark.parametrize("op", BENT)
def test_exactness_ends_where_a_value_is_bent(op: str) -> None:
    graph, demands = demanded(f"""
        %x: f32[4] input
        first = matmul(%x) -> %h: f32[4]
        bend = {op}(%h) -> %a: f32[4]
        last = matmul(%a) -> %b: f32[4]
        round = round(%b) -> %y: f32[4]
        return %y
    """)
    assert demands.is_exact(graph.op_by_name["last"])
    assert demands.on("h") < EXACT
    assert not demands.is_exact(graph.op_by_name["first"])


def test_attention_before_an_exact_argument_may_be_low() -> None:
    graph, demands = demanded("""
        %q: f32[1,4,8] input
        att = scaled_dot_product_attention(%q, %q, %q) -> %a: f32[1,4,8]
        last = matmul(%a) -> %b: f32[1,4,8]
        round = round(%b) -> %y: f32[1,4,8]
        return %y
    """)
    assert demands.on_op(graph.op_by_name["att"]) is FULL
    assert demands.on("q") is ANY


LOOP = """
    %x: f32[4] input
    first = matmul(%x) -> %h: f32[4]
    in = carry(%h) -> %c: f32[4]
    two = matmul(%c) -> %d: f32[4]
    neg = {op}(%d) -> %e: f32[4]
    {read} = {read}(%c) -> %s: f32[4]
    out = carry(%e) -> %r: f32[4]
      | turns=["c"]
    gelu = gelu(%r) -> %y: f32[4]
    return %y
"""


def test_exactness_goes_round_a_loop() -> None:
    graph, demands = demanded(LOOP.format(op="neg", read="sin"))
    assert [demands.on(name) for name in "xhcdey"] == [EXACT] * 5 + [ANY]
    assert demands.path(graph, graph.op_by_name["two"]) == ("neg", "out", "sin")
    assert demands.path(graph, graph.op_by_name["first"]) == ("in", "sin")


def test_exactness_ends_inside_of_a_loop() -> None:
    graph, demands = demanded(LOOP.format(op="tanh", read="sin"))
    assert (demands.on("c"), demands.on("d")) == (EXACT, FULL)
    assert not demands.is_exact(graph.op_by_name["two"])
    _, demands = demanded(LOOP.format(op="neg", read="exp"))
    assert demands.on("d") is FULL


WRITTEN = """
    %x: f32[4] input
    zeros = zeros() -> %z: f32[8]
    view = slice(%z) -> %v: f32[4] alias %z
    dot = matmul(%x) -> %a: f32[4]
    write = copy(%v, %a) -> %w: f32[4] alias %z
      | mutates=[0]
    sin = sin(%z) -> %s: f32[8]
    dot_1 = matmul(%x) -> %b: f32[4]
    write_1 = copy(%v, %b) -> %u: f32[4] alias %z
      | mutates=[0]
    last = matmul(%z) -> %y: f32[8]
    return %s, %y
"""


def test_what_is_written_before_an_exact_reader_is_exact() -> None:
    graph, demands = demanded(WRITTEN)
    exact = [op.name for op in graph.ops if demands.is_exact(op)]
    assert exact == ["zeros", "view", "dot", "write"]
    assert demands.path(graph, graph.op_by_name["dot"]) == ("write", "sin")


WAITING = """
    %x: f32[4] input
    in = carry(%x) -> %c: f32[4]
    norm = linalg_vector_norm(%c) -> %n: f32[]
    more = gt(%n) -> %t: bool[]
      | literals=[0.5] {decides}
    in_1 = carry(%x) -> %d: f32[4]
    dot = matmul(%d) -> %e: f32[4]
    step = {step}(%e) -> %f: f32[4]
    out = carry(%f) -> %r: f32[4]
      | turns=["c", "d"]
    return %r
"""


@pytest.mark.parametrize(
    ("decides", "step", "demand"),
    [
        ("decides=true", "neg", TESTED),
        ("decides=true", "exp", FULL),
        ("decides=true", "tanh", FULL),
        ("", "neg", FULL),
    ],
)
def test_what_the_test_of_a_loop_compares_is_exact_through_linear_steps(
    decides: str, step: str, demand: Demand
) -> None:
    graph, demands = demanded(WAITING.format(decides=decides, step=step))
    assert demands.on("e") is demand
    dot = graph.op_by_name["dot"]
    assert demands.is_exact(dot) is (demand is TESTED)
    if demand is TESTED:
        assert demands.path(graph, dot) == ("step", "out", "norm", "more")


def test_the_comparisons_of_a_binary_search_want_exact_values() -> None:
    text = """
        %x: f32[4] input
        dot = matmul(%x) -> %a: f32[4]
        less = lt(%a, %x) -> %t: bool[4]
          | calls=["{call}"]
        return %t
    """
    graph, demands = demanded(text.format(call="searchsorted#2"))
    assert demands.is_exact(graph.op_by_name["dot"])
    graph, demands = demanded(text.format(call="relu#1"))
    assert not demands.is_exact(graph.op_by_name["dot"])


def test_an_angle_is_the_argument_of_a_complex_exponential() -> None:
    text = """
        %x: f32[4] input
        dot = matmul(%x) -> %a: f32[4]
        turn = mul(%a) -> %c: {kind}[4]
        exp = exp(%c) -> %y: {kind}[4]
        return %y
    """
    for kind, exact in (("c64", True), ("f32", False)):
        graph, demands = demanded(text.format(kind=kind))
        assert demands.is_exact(graph.op_by_name["dot"]) is exact


def test_a_mean_of_neighbours_passes_on_only_what_is_exact() -> None:
    text = """
        %x: f32[4] input
        pool = avg_pool1d(%x) -> %p: f32[4]
        {last} = {last}(%p) -> %y: f32[4]
        return %y
    """
    assert demanded(text.format(last="sin"))[1].on("x") is EXACT
    assert demanded(text.format(last="exp"))[1].on("x") is ANY


def test_a_cast_to_integers_is_a_step() -> None:
    _, demands = demanded("""
        %x: f32[4] input
        cast = cast(%x) -> %i: i64[4]
          | dtype_argument="int64" operand_rule="any"
        return %i
    """)
    assert demands.on("x") is EXACT


def test_a_cast_between_floats_wants_full() -> None:
    _, demands = demanded("""
        %x: f32[4] input
        cast = cast(%x) -> %i: f64[4]
          | dtype_argument="float64" operand_rule="any"
        return %i
    """)
    assert demands.on("x") is FULL


def test_a_value_is_full_only_if_all_who_read_it_want_full() -> None:
    _, demands = demanded("""
        %x: f32[4] input
        a = mul(%x) -> %a: f32[4]
        mean = mean(%a) -> %m: f32[]
        linear = linear(%a) -> %y: f32[4]
        return %m, %y
    """)
    assert demands.on("a") is ANY


def test_one_reader_that_wants_exact_is_enough() -> None:
    _, demands = demanded("""
        %x: f32[4] input
        a = mul(%x) -> %a: f32[4]
        sin = sin(%a) -> %s: f32[4]
        linear = linear(%a) -> %y: f32[4]
        return %s, %y
    """)
    assert demands.on("a") is EXACT


def test_an_output_in_full_is_a_reader() -> None:
    text = CHAIN.format(last="tanh")
    assert demanded(text, "y")[1].on("q") is FULL
    assert demanded(text)[1].on("q") is ANY


def test_an_op_that_reads_metadata_wants_nothing() -> None:
    _, demands = demanded("""
        %x: f32[4] input
        zeros = zeros_like(%x) -> %z: f32[4]
          | operand_rule="any"
        return %z
    """)
    assert demands.on("x") is ANY


def test_an_op_with_several_results_is_full_if_all_are() -> None:
    graph, demands = demanded("""
        %x: f32[4] input
        split = split(%x) -> %a: f32[2]; %b: f32[2]
        mean = mean(%a) -> %m: f32[]
        linear = linear(%b) -> %y: f32[2]
        return %m, %y
    """)
    split = graph.op_by_name["split"]
    assert (demands.on("a"), demands.on("b")) == (FULL, ANY)
    assert demands.on_op(split) is ANY


def test_integer_results_have_no_say() -> None:
    graph, demands = demanded("""
        %x: f32[4] input
        pick = sort(%x) -> %v: f32[4]; %i: i64[4]
        mean = mean(%v) -> %m: f32[]
        return %m, %i
    """)
    assert demands.on_op(graph.op_by_name["pick"]) is FULL


def test_the_path_of_causes_ends_at_what_wants_full_by_itself() -> None:
    graph, demands = demanded("""
        %x: f32[4] input
        square = square(%x) -> %q: f32[4]
        neg = neg(%q) -> %n: f32[4]
        mean = mean(%n) -> %m: f32[]
        exp = exp(%m) -> %e: f32[]
        return %e
    """)
    assert demands.path(graph, graph.op_by_name["square"]) == ("neg", "mean")


def test_the_path_of_causes_may_end_at_an_output() -> None:
    graph, demands = demanded(CHAIN.format(last="tanh"), "y")
    assert demands.path(graph, graph.op_by_name["square"]) == ("neg", "tanh", "output")


def test_an_op_that_nothing_forces_has_no_path() -> None:
    graph, demands = demanded(CHAIN.format(last="matmul"))
    assert demands.path(graph, graph.op_by_name["square"]) == ()


STATISTIC = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    dot = matmul(%x, %w) -> %h: f32[4,8]
    mean = mean(%h) -> %m: f32[4,1]
    mul = mul(%m, %m) -> %s: f32[4,1]
    rsqrt = {}(%s) -> %y: f32[4,1]
    last = matmul(%y, %x) -> %z: f32[4,8]
    return %z
"""


def test_a_statistic_that_may_be_low_passes_demand_on() -> None:
    text = STATISTIC.format("rsqrt")
    wanted = plan_of(text, "bf16-accumulate").by_op["mean"]
    assert (wanted.op_class, wanted.precision) == ("accumulate", "float32")
    assert wanted.causes == ("mul", "rsqrt")
    free = plan_of(STATISTIC.format("gelu"), "bf16-accumulate").by_op
    assert {free[name].precision for name in ("mean", "mul")} == {"bfloat16"}


def test_a_full_statistic_takes_its_dtype_as_an_argument() -> None:
    text = STATISTIC.format("rsqrt").replace(
        "f32[4,1]\n    mul", "f32[4,1]\n      | has_dtype_argument=true\n    mul"
    )
    (cast,) = (c for c in plan_of(text, "bf16-accumulate").casts if c.value == "h")
    assert (cast.folding, cast.bytes) == ("dtype", 0)

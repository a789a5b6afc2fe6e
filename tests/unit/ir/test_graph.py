"""What a program graph knows about its values and ops."""

from amprewrite.ir import Op, ProgramGraph, Value, parse_graph

TEXT = """
%x: f32[2,3] input
%ids: i64[2] input
%w: f32[4,3] parameter
a = linear(%x, %w) -> %a: f32[2,4]
b = add(%a, %a) -> %b: f32[2,4]
c = index(%b, %ids) -> %c: f32[2,4]
v = view(%b) -> %v: f32[8] alias %b
return %c, %c
"""


def a_graph() -> ProgramGraph:
    return parse_graph(TEXT)


def test_a_value_without_an_alias_owns_its_storage() -> None:
    assert Value("x", "float32", (2,)).alias == "x"
    assert Value("v", "float32", (2,), alias="x").alias == "x"


def test_elements_and_bytes_follow_dtype_and_shape() -> None:
    value = Value("x", "bfloat16", (2, 3))
    assert (value.elements, value.bytes) == (6, 12)
    assert Value("x", "float32", ()).bytes == 4


def test_a_symbolic_extent_counts_as_one() -> None:
    assert Value("x", "float32", ("s0", 3)).bytes == 12


def test_a_symbolic_extent_has_no_spaces() -> None:
    """The text of a graph has none either, and must parse to the same graph."""
    assert Value("x", "float32", ("s0 + 1", 3)).shape == ("s0+1", 3)


def test_producers_are_known_for_results_only() -> None:
    producer = a_graph().producer
    assert producer["a"].canonical == "linear"
    assert "x" not in producer


def test_users_are_listed_for_each_operand_in_program_order() -> None:
    users = a_graph().users
    assert [(op.name, i) for op, i in users["a"]] == [("b", 0), ("b", 1)]
    assert [(op.name, i) for op, i in users["b"]] == [("c", 0), ("v", 0)]
    assert users["c"] == ()


def test_ops_are_found_by_name() -> None:
    assert a_graph().op_by_name["c"].operands == ("b", "ids")


def test_an_op_has_the_facts_of_its_line() -> None:
    assert Op("a", "sum", "reduce_sum", (), ()).traits.statistic
    assert Op("a", "sum", "", (), ()).traits.group == "sum"
    assert not Op("a", "mylib.scan", "mylib.scan.default", (), ()).traits.group


def test_the_network_has_an_edge_for_each_dependence() -> None:
    network = a_graph().network
    assert set(network.nodes) == {"a", "b", "c", "v"}
    assert set(network.edges) == {("a", "b"), ("b", "c"), ("b", "v")}
    assert network.edges["a", "b"]["value"] == "a"


def test_inputs_are_those_of_the_kinds_asked_for() -> None:
    graph = a_graph()
    assert [v.name for v in graph.inputs()] == ["x", "ids", "w"]
    assert [v.name for v in graph.inputs("parameter")] == ["w"]
    assert [v.name for v in graph.inputs("buffer", "constant")] == []


def test_a_view_has_the_storage_of_what_it_views() -> None:
    graph = a_graph()
    assert graph.storage("v") == graph.storage("b") == "b"


def test_storages_that_are_written_are_named_by_their_owner() -> None:
    write = "add = add(%v) -> %u: f32[8] alias %b\n  | mutates=[0]\nreturn"
    assert parse_graph(TEXT.replace("return", write, 1)).written == {"b"}
    assert a_graph().written == frozenset()


def test_dtypes_are_compared_by_name() -> None:
    assert a_graph().is_dtype("ids", "int64")
    assert not a_graph().is_dtype("ids", "float32")


def test_values_of_real_floats_are_told_from_indices() -> None:
    graph = a_graph()
    assert [graph.values[n].is_float for n in graph.op_by_name["c"].operands] == [
        True,
        False,
    ]
    assert not Value("z", "complex64", ()).is_float


def test_facts_of_an_op_have_quiet_defaults() -> None:
    op = Op("a", "add", "", ("x",), ("y",))
    assert (op.operand_rule, op.mutates, op.fence, op.contracted) == (
        "equal",
        (),
        "",
        None,
    )

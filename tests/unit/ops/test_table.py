"""The table of ops: what it holds, how strictly it is read."""

import subprocess
import sys
import tomllib
from itertools import groupby, pairwise

import pytest

from amprewrite.errors import OpTableError
from amprewrite.ops import UNKNOWN, Group, op_table, traits_of
from amprewrite.ops.table import FILE, parse_table

GROUPS = '[groups]\npointwise = "by element"\nlookup = "rows"\n[ops]\n'


def mistakes(text: str) -> list[str]:
    with pytest.raises(OpTableError) as caught:
        parse_table(text, "mine.toml")
    count = len(caught.value.mistakes)
    assert str(caught.value).startswith(f"mine.toml: {count} mistake")
    return list(caught.value.mistakes)


def test_a_line_is_what_an_op_is():
    lines = 'add = { group = "pointwise", operand_rule = "promote", aten = ["plus"] }'
    table = parse_table(GROUPS + lines, "mine.toml")
    assert table.groups["pointwise"] == "by element"
    assert (table.ops["add"].group, table.ops["add"].operand_rule) == (
        *("pointwise", "promote"),
    )
    assert table.aten == {"plus": "add"}
    assert not table.jax
    assert list(table.members("pointwise")) == ["add"]
    assert not list(table.members("lookup"))


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ('a = "pointwise"', "ops.a: found 'pointwise'; want a table such as"),
        ("a = { }", "ops.a: has no group; every op needs one of [groups]"),
        ("a = { group = 1 }", "ops.a.group: found 1; want a text"),
        (
            'a = { group = "pointwize" }',
            (
                "ops.a.group: unknown group 'pointwize'; want one of [groups] "
                "(did you mean 'pointwise'?)"
            ),
        ),
        (
            'a = { group = "lookup", orderz = true }',
            "ops.a.orderz: unknown key; want one of group, operand_rule",
        ),
        ('a = { group = "lookup", orderz = true }', "(did you mean 'orders'?)"),
        (
            'a = { group = "lookup", orders = 1 }',
            "ops.a.orders: found 1; want true or false",
        ),
        (
            'a = { group = "lookup", rounds_inside_from = true }',
            "ops.a.rounds_inside_from: found True; want a number",
        ),
        (
            'a = { group = "lookup", aten = "b" }',
            "ops.a.aten: found 'b'; want a list",
        ),
        ('a = { group = "lookup", jax = [1] }', "ops.a.jax: found [1]; want a list"),
        (
            'a = { group = "lookup", operand_rule = "widest" }',
            "ops.a.operand_rule: found 'widest'; want one of equal, promote, lead, any",
        ),
        (
            (
                'a = { group = "lookup", jax = ["c"] }\n'
                'b = { group = "lookup", jax = ["c"] }'
            ),
            "ops.b.jax: 'c' is a already; want each spelling in one line",
        ),
        (
            'a = { group = "lookup", aten = ["b"] }\nb = { group = "lookup" }',
            "ops.a.aten: 'b' is b already; want each spelling in one line",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key(line, mistake):
    (found,) = mistakes(GROUPS + line)
    assert mistake in found


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('[opz]\na = "b"', "opz: unknown table; want groups and ops"),
        ("groups = 3", "groups: found 3; want a table [groups]"),
        (
            "[groups]\na = 3",
            (
                "groups.a: found 3; want a text, or a table such as "
                '{ about = "...", bends = true }'
            ),
        ),
        (
            '[groups]\na = { about = "x", bends = 1 }',
            "groups.a.bends: found 1; want a fact of all its ops, as bends = true",
        ),
        (
            '[groups]\na = { about = "x", aten = true }',
            "groups.a.aten: found True; want a fact of all its ops, as bends = true",
        ),
    ],
)
def test_a_mistake_in_the_tables_is_named(text, mistake):
    assert mistakes(text) == [mistake]


def test_a_fact_of_a_group_is_one_of_each_of_its_ops():
    text = '[groups]\na = { about = "bent", bends = true }\nb = "others"\n[ops]\n'
    lines = (
        'x = { group = "a" }\ny = { group = "b" }\nz = { group = "b", bends = true }'
    )
    table = parse_table(text + lines, "mine.toml")
    assert [table.ops[name].bends for name in "xyz"] == [True, False, True]
    assert table.groups == {"a": "bent", "b": "others"}


def test_every_mistake_is_named_at_once():
    assert len(mistakes(GROUPS + 'a = { }\nb = 3\nc = { group = "x", y = 1 }')) == 4


def test_an_op_has_one_line():
    twice = 'a = { group = "lookup" }\na = { group = "pointwise" }'
    with pytest.raises(OpTableError, match=r"mine\.toml: is no TOML: .*only one line"):
        parse_table(GROUPS + twice, "mine.toml")


def test_a_primitive_may_have_the_name_of_another_op_of_aten():
    lines = 'a = { group = "lookup", jax = ["b"] }\nb = { group = "lookup" }'
    assert parse_table(GROUPS + lines, "mine.toml").jax == {"b": "a"}


def test_ops_stand_by_group_and_sorted():
    lines = tomllib.loads(FILE.read_text("utf-8"))["ops"].items()
    blocks = [
        (group, [name for name, _ in block])
        for group, block in groupby(lines, lambda line: line[1]["group"])
    ]
    assert [group for group, _ in blocks] == list(op_table().groups)
    for _, names in blocks:
        assert all(a < b for a, b in pairwise(names))


def test_every_group_that_passes_ask_for_is_one():
    assert set(Group) <= set(op_table().groups)


@pytest.mark.parametrize(
    ("canonical", "native", "group"),
    [
        ("softmax", "aten.softmax.int", "softmax"),
        ("softmax", "", "softmax"),
        ("permute", "transpose", "movement"),
        ("mylib.scan", "mylib.scan.default", ""),
        (
            "batched_mm_fallback",
            "transformers.batched_mm_fallback.default",
            "contraction",
        ),
    ],
)
def test_an_op_is_found_by_each_of_its_names(canonical, native, group):
    assert traits_of(canonical, native).group == group


def test_of_what_has_no_line_nothing_is_known():
    assert traits_of("mylib.scan", "mylib.scan.default") is UNKNOWN


def test_importing_the_package_does_not_read_the_table():
    program = (
        "import amprewrite\n"
        "from amprewrite.ops import op_table\n"
        "assert not op_table.cache_info().currsize\n"
        "amprewrite.load_policy('bf16')\n"
        "assert op_table.cache_info().currsize\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

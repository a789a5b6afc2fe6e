"""A plan by module: layers of a stack share a row, parts of a Sequential do not."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from amprewrite.plan import Cast, Decision, Plan
from amprewrite.plan.lines import row_names
from amprewrite.report.modules import _bytes, module_rows, modules_table


def decision(path, canonical="linear", precision="bfloat16"):
    name = f"{path}/{canonical}"
    return Decision(name, canonical, "", "allow", precision, "", "", path=path)


def cast(path, **given):
    return Cast("v", "float32", "bfloat16", (2,), 12, "", (), path=path, **given)


def plan(decisions, casts=(), low="bfloat16"):
    return Plan("p", "promote", low, "float32", "given", tuple(decisions), tuple(casts))


def text_of(table, width=120):
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(table)
    return console.export_text()


def test_layers_share_a_row():
    paths = ("layer.0", "layer.0.norm", "layer.1", "layer.1.norm")
    found = plan(decision(path) for path in paths)
    assert set(row_names(found).values()) == {"layer.*", "layer.*.norm"}
    assert module_rows(found)["layer.*"].paths == {"layer.0", "layer.1"}


def test_parts_of_a_sequential_do_not():
    found = plan([decision("0"), decision("1", "gelu"), decision("12", "linear")])
    assert list(module_rows(found)) == ["0", "1", "12"]


def test_parts_of_sequentials_in_a_stack():
    ops = ("linear", "gelu")
    pairs = [(layer, part) for layer in range(3) for part in range(2)]
    found = plan(decision(f"h.{a}.ff.{b}", ops[b]) for a, b in pairs)
    assert list(module_rows(found)) == ["h.*.ff.0", "h.*.ff.1"]


def test_names_with_digits_are_no_numbers():
    found = plan([decision("conv1"), decision("conv2"), decision("x2.fc")])
    assert list(module_rows(found)) == ["conv1", "conv2", "x2.fc"]


def test_casts_are_counted_once():
    casts = [cast("a"), cast("a", folded=True), cast("b", is_weight=True, folded=True)]
    rows = module_rows(plan([decision("a")], casts))
    counts = {name: (r.casts, r.folded, r.weights) for name, r in rows.items()}
    assert counts == {"a": (1, 1, 0), "b": (0, 0, 1)}


def test_the_table_has_totals_and_no_empty_column():
    text = text_of(modules_table(plan([decision("a"), decision("")], [cast("a")])))
    assert "(root)" in text
    assert "bf16 ops" in text
    assert "f32 ops" not in text
    assert text.split()[-5:] == ["all", "2", "1", "12", "B"]


def test_a_plan_without_ops():
    assert "all" in text_of(modules_table(plan([], low="")))


def blocks(count=12):
    inner = ("attention.self.query", "intermediate.intermediate_act_fn", "output.norm")
    paths = [f"bert.encoder.layer.{n}.{name}" for n in range(count) for name in inner]
    return plan(
        [decision("bert.embeddings"), *map(decision, paths), decision("pooler")],
        [cast(path) for path in paths],
    )


def test_repeated_blocks_are_one_row_with_their_number():
    rows = module_rows(blocks(), by_layer=True)
    assert list(rows) == ["bert.embeddings", "bert.encoder.layer.*", "pooler"]
    layers = rows["bert.encoder.layer.*"]
    assert (len(layers.paths), layers.ops.total(), layers.casts) == (12, 36, 36)
    assert layers.cast_bytes == 36 * 12
    text = text_of(modules_table(blocks(), by_layer=True), width=80)
    assert "bert.encoder.layer.* x12" in text


def test_a_block_without_another_keeps_its_number():
    inside = [decision("1.a"), decision("1.b")]
    found = plan([decision("0"), *inside, decision("2", "gelu")])
    assert list(module_rows(found, by_layer=True)) == ["0", "1", "2"]


@pytest.mark.parametrize("by_layer", [True, False])
def test_the_table_fits_80_columns(by_layer):
    huge = [cast("bert.pooler", is_weight=True, folded=w) for w in (True, False)]
    found = blocks(1000)
    found = replace(found, casts=(*found.casts, *huge, cast("pooler", folded=True)))
    text = text_of(modules_table(found, by_layer=by_layer), width=80)
    assert max(map(len, text.splitlines())) <= 80
    for head in ("bf16 ops", "casts", "folded", "weights", "bytes", "36.0 kB"):
        assert head in text, "no number and no head is broken"
    assert not by_layer or len(text.splitlines()) < 12


def test_numbers_stay_whole_beside_a_long_name():
    found = plan([decision("w" * 79)], [cast("w" * 79, folded=True)] * 1234)
    lines = text_of(modules_table(found), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("1,234" in line and "14.8 kB" in line for line in lines)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, ""), (1, "1 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345, "12.3 kB")),
        *((999_400, "999 kB"), (999_600, "1.0 MB"), (10**15, "1000 TB")),
    ],
)
def test_bytes_have_units(count, text):
    assert _bytes(count) == text

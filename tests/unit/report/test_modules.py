"""A plan by module: layers of a stack share a row, parts of a Sequential do not."""

import io

from rich.console import Console

from amprewrite.plan import Cast, Decision, Plan
from amprewrite.report.modules import module_rows, modules_table, row_names


def decision(path, canonical="linear", precision="bfloat16"):
    name = f"{path}/{canonical}"
    return Decision(name, canonical, "", "allow", precision, "", "", path=path)


def cast(path, **given):
    return Cast("v", "float32", "bfloat16", (2,), 12, "", (), path=path, **given)


def plan(decisions, casts=(), low="bfloat16"):
    return Plan("p", "promote", low, "float32", "given", tuple(decisions), tuple(casts))


def text_of(table):
    console = Console(file=io.StringIO(), width=120, record=True)
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
    assert text.split()[-4:] == ["all", "2", "1", "12"]


def test_a_plan_without_ops():
    assert "all" in text_of(modules_table(plan([], low="")))

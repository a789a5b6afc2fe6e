"""Time until the HTML page of a conversion is usable, by the number of its ops.

    python -m benchmarks.page --out found.json

Needs Chromium and its driver, see tools/browser.py. The program is a transformer of
many layers, written as a graph, with made-up errors; the page is loaded from a file in
a fresh headless browser for each round.
"""

import argparse
import json
import math
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from amprewrite.ir import check_graph, parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, load_policy
from amprewrite.verify import Report
from amprewrite.verify.rows import OpError
from tools.browser import chromium, console, load

LAYER = """
{n}.q = linear(%{x}, %w) -> %{n}.q: f32[8,128,768] | attention.query
{n}.k = linear(%{x}, %w) -> %{n}.k: f32[8,128,768] | attention.key
{n}.v = linear(%{x}, %w) -> %{n}.v: f32[8,128,768] | attention.value
{n}.qv = view(%{n}.q) -> %{n}.qv: f32[8,12,128,64] | attention
{n}.kv = view(%{n}.k) -> %{n}.kv: f32[8,12,64,128] | attention
{n}.vv = view(%{n}.v) -> %{n}.vv: f32[8,12,128,64] | attention
{n}.scores = matmul(%{n}.qv, %{n}.kv) -> %{n}.scores: f32[8,12,128,128] | attention
{n}.scaled = mul(%{n}.scores) -> %{n}.scaled: f32[8,12,128,128] | attention
{n}.masked = add(%{n}.scaled, %mask) -> %{n}.masked: f32[8,12,128,128] | attention
{n}.p = softmax(%{n}.masked) -> %{n}.p: f32[8,12,128,128] | attention.softmax
{n}.pd = dropout(%{n}.p) -> %{n}.pd: f32[8,12,128,128] | attention.dropout
{n}.c = matmul(%{n}.pd, %{n}.vv) -> %{n}.c: f32[8,12,128,64] | attention
{n}.cv = view(%{n}.c) -> %{n}.cv: f32[8,128,768] | attention
{n}.o = linear(%{n}.cv, %w) -> %{n}.o: f32[8,128,768] | attention.out
{n}.od = dropout(%{n}.o) -> %{n}.od: f32[8,128,768] | attention.out
{n}.r = add(%{n}.od, %{x}) -> %{n}.r: f32[8,128,768] | attention.out
{n}.h = layer_norm(%{n}.r) -> %{n}.h: f32[8,128,768] | norm1
{n}.up = linear(%{n}.h, %w) -> %{n}.up: f32[8,128,768] | mlp.up
{n}.g = gelu(%{n}.up) -> %{n}.g: f32[8,128,768] | mlp
{n}.down = linear(%{n}.g, %w) -> %{n}.down: f32[8,128,768] | mlp.down
{n}.dd = dropout(%{n}.down) -> %{n}.dd: f32[8,128,768] | mlp
{n}.rr = add(%{n}.dd, %{n}.h) -> %{n}.rr: f32[8,128,768] | mlp
{n}.y = layer_norm(%{n}.rr) -> %{n}.y: f32[8,128,768] | norm2
"""
"""One layer: 23 ops, the module of each after a bar."""

SIZES = (1, 10, 50, 218)
"""Numbers of layers; 218 of 23 ops are 5,014."""


def deep_plan(layers: int) -> Plan:
    """Return the plan of a transformer of ``layers`` layers of 23 ops."""
    lines = [
        "%x: f32[8,128,768] input",
        "%mask: f32[8,1,1,128] input",
        "%w: f32[768,768] parameter",
    ]
    before = "x"
    for number in range(layers):
        name = f"l{number}"
        for line in LAYER.format(n=name, x=before).strip().splitlines():
            op, _, module = line.partition(" | ")
            lines += [op, f'  | path="encoder.layer.{number}.{module}"']
        before = f"{name}.y"
    lines.append(f"return %{before}")
    graph = check_graph(parse_graph("\n".join(lines)))
    return make_plan(graph, Matcher(load_policy("bf16")), Setting())


def deep_report(plan: Plan) -> Report:
    """Return a report with made-up errors of every op of ``plan``."""
    count = len(plan.decisions)
    ops = tuple(
        OpError(
            d.op,
            d.canonical,
            d.native,
            d.path,
            "model.py:1",
            d.precision,
            own=0.002 if d.precision == plan.low else 3e-8,
            accumulated=0.002 * math.sqrt(1 + index / 50),
            nonfinite=0,
            share=2 * (index + 1) / (count * (count + 1)),
        )
        for index, d in enumerate(plan.decisions)
    )
    return Report("float64", plan.low, 0.01, 0.02, (), ops=ops, plan=plan)


def measure(layers: int, rounds: int) -> dict[str, object]:
    """Return sizes and times of the page of one program."""
    plan = deep_plan(layers)
    report = deep_report(plan)
    ready: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        start = time.perf_counter()
        report.to_html(path)
        written = time.perf_counter() - start
        for _ in range(rounds):
            with chromium() as driver:
                ready.append(load(driver, path))
                assert not console(driver)
        size = path.stat().st_size
    return {
        "ops": len(plan.decisions),
        "casts": len(plan.casts),
        "kilobytes": round(size / 1000),
        "seconds to write": round(written, 3),
        "seconds until usable": [round(found / 1000, 3) for found in sorted(ready)],
        "median": round(statistics.median(ready) / 1000, 3),
    }


def main() -> None:
    """Measure all sizes and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    found = parser.parse_args()
    with chromium() as driver:
        browser = driver.capabilities["browserVersion"]
    rows = [measure(layers, found.rounds) for layers in SIZES]
    data = {
        "versions": {
            "amprewrite": version("amprewrite"),
            "chromium": browser,
            "python": platform.python_version(),
        },
        "machine": {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "pages": rows,
    }
    text = json.dumps(data, indent=1) + "\n"
    if found.out is None:
        print(text)
    else:
        found.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

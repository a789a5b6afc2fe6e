"""The commands that measure this machine: the demo, and the calibration."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain

from rich.console import RenderableType
from rich.table import Table

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.options import AsJson
from amprewrite.cli.progress import progress
from amprewrite.cli.show import answer, say
from amprewrite.plan.hardware import FULL, Calibration, Casts, cache_file

# Tables of the timings that a calibration measured, for a terminal.


def calibration_parts(calibration: Calibration) -> Iterator[RenderableType]:
    """Yield the speed of each low dtype over float32, and the seconds of casts."""
    lows = [*calibration.casts]
    yield f"{calibration.device}"
    yield "times faster than float32; below 1 it is slower"
    table = Table()
    for head in ("contraction", "thinnest", "multiply-adds", f"{FULL} us", *lows):
        right = head != "contraction"
        table.add_column(head, justify="right" if right else "left")
    for one in calibration.contractions:
        name = f"{one.batches} x {one.kind}" if one.batches > 1 else one.kind
        row = (name, f"{one.thin:,}", f"{one.macs:,}")
        table.add_row(*row, *_speeds(one.seconds, lows))
    table.add_section()
    for one in calibration.elementwise:
        table.add_row(one.op, "", "", *_speeds(one.seconds, lows))
    yield table
    yield from (_casts(low, casts) for low, casts in calibration.casts.items())
    if calibration.emits_accumulators is not None:
        handed = FULL if calibration.emits_accumulators else "bfloat16"
        yield f"bfloat16 contractions hand over {handed} sums"


def _speeds(seconds: Mapping[str, float], lows: Sequence[str]) -> Iterator[str]:
    full = seconds[FULL]
    yield f"{full * 1e6:,.1f}"
    for low in lows:
        yield f"{full / seconds[low]:.2f}" if low in seconds else ""


def _casts(low: str, casts: Casts) -> str:
    each = 1e9 / casts.elements
    return (
        f"casts to {low}: {casts.down * each:.2f} ns an element, "
        f"{casts.up * each:.2f} ns back, {casts.launch * 1e6:.1f} us to start"
    )


@app.command()
def demo(*, as_json: AsJson = False) -> None:
    """Convert, verify and time a real pretrained sentence encoder."""
    from amprewrite.demo.run import run
    from amprewrite.demo.show import show as tables

    start = time.perf_counter()
    figures = run(lambda text: say(f"{time.perf_counter() - start:5.1f} s  {text}"))
    say(f"{time.perf_counter() - start:5.1f} s  done\n")
    answer(figures.to_json, *tables(figures), as_json=as_json)


@app.command()
def calibrate(*, as_json: AsJson = False) -> None:
    """Time low and full precision on this machine, and save the result as its prices.

    Every installed framework is timed on its default device. From then on, plans for
    that device are priced by the measurements, and placement ``optimal`` keeps ops in
    full precision that are slower in low precision.
    """
    with progress(1) as work:
        work.step("time contractions, other ops and casts")
        found = api.calibrate()
    parts = chain.from_iterable(map(calibration_parts, found.values()))
    data = {name: asdict(one) for name, one in found.items()}
    answer(lambda: data, *parts, as_json=as_json)
    for one in found.values():
        say(f"wrote {cache_file(one.device)}")

"""The commands that measure this machine: the demo, and the calibration."""

import time
from dataclasses import asdict
from itertools import chain

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.options import AsJson
from amprewrite.cli.progress import progress
from amprewrite.cli.show import say, show, show_json
from amprewrite.plan.hardware import cache_file


@app.command()
def demo(*, as_json: AsJson = False) -> None:
    """Convert, verify and time a real pretrained sentence encoder."""
    from amprewrite.demo.run import run
    from amprewrite.demo.show import show as tables

    start = time.perf_counter()
    figures = run(lambda text: say(f"{time.perf_counter() - start:5.1f} s  {text}"))
    say(f"{time.perf_counter() - start:5.1f} s  done\n")
    if as_json:
        show_json(figures.to_json())
    else:
        show(*tables(figures))


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
    if as_json:
        show_json({name: asdict(one) for name, one in found.items()})
    else:
        from amprewrite.cli.calibration import calibration_parts

        show(*chain.from_iterable(map(calibration_parts, found.values())))
    for one in found.values():
        say(f"wrote {cache_file(one.device)}")

"""The commands that measure this machine: the demo, and the calibration."""

import time

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.options import AsJson
from amprewrite.cli.show import say, show, show_json


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
    """Time the contractions of JAX on this machine, and keep what was found.

    Conversions of JAX functions then hand over the accumulators of low contractions
    where that is faster.
    """
    found = api.calibrate()
    if as_json:
        show_json(found)
    else:
        chosen = "float32 accumulators" if found["emits_accumulators"] else "bfloat16"
        show(
            f"{found['backend']}: bfloat16 contractions hand over {chosen}",
            "time of a contraction over that of float32:",
            *(f"  {name:<12} {x:.2f}" for name, x in found["ratios"].items()),
        )
    say(f"wrote {found['file']}")

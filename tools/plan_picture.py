"""Draw the plan of examples/convert_mlp.py as docs/plan.svg.

    python -m tools.plan_picture

A box is an op in the precision that it computes in, an arrow a value, a pill on it the
cast that the value passes at run time. Colours have enough contrast on light and dark
pages. The program has to be a chain.
"""

from collections.abc import Iterator
from pathlib import Path

import amprewrite
from amprewrite.dtypes import short_name
from amprewrite.factories import load_factory
from amprewrite.plan import OUTPUT, Cast, Decision, Plan

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "plan.svg"
EXAMPLE = ROOT / "examples" / "convert_mlp.py"

BOX, GAP, HEIGHT, TOP = 92, 62, 52, 8
COLOURS = {True: "#1d4ed8", False: "#b45309"}
"""Fill of a box, and of a pill for the dtype after the cast: low, then full."""
LINE = "#808080"


def picture(plan: Plan) -> str:
    """Return a plan as SVG text.

    Args:
        plan: The plan of a chain: each op reads the result of the one before it.
    """
    names = ["input", *(decision.op for decision in plan.decisions), OUTPUT]
    width = len(names) * BOX + (len(names) - 1) * GAP
    boxes = [_ends(0, names[0]), _ends(len(names) - 1, names[-1])]
    boxes += [_op(i, d, plan.low) for i, d in enumerate(plan.decisions, start=1)]
    arrows = (_arrow(i, name, plan) for i, name in enumerate(names[1:], start=1))
    size = f'viewBox="0 0 {width} {HEIGHT + 38}"'
    font = 'font-family="sans-serif" font-size="13" text-anchor="middle"'
    legend = f"blue: {plan.low}; brown: {plan.full}; small boxes: casts at run time"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f"<title>Plan of a network under the policy {plan.policy}</title>",
        *(line for arrow in arrows for line in arrow),
        *(line for box in boxes for line in box),
        f'<text x="{width / 2}" y="{TOP + HEIGHT + 22}" fill="{LINE}">{legend}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _left(index: int) -> int:
    return index * (BOX + GAP)


def _ends(index: int, name: str) -> Iterator[str]:
    x = _left(index)
    yield (
        f'<rect x="{x + 1}" y="{TOP}" width="{BOX - 2}" height="{HEIGHT}" rx="8" '
        f'fill="none" stroke="{LINE}"/>'
    )
    y = TOP + HEIGHT / 2 + 4
    yield f'<text x="{x + BOX / 2}" y="{y}" fill="{LINE}">{name}</text>'


def _op(index: int, decision: Decision, low: str) -> Iterator[str]:
    x, fill = _left(index), COLOURS[decision.precision == low]
    middle = x + BOX / 2
    yield (
        f'<rect x="{x}" y="{TOP}" width="{BOX}" height="{HEIGHT}" rx="8" '
        f'fill="{fill}"><title>{decision.why}</title></rect>'
    )
    yield f'<text x="{middle}" y="{TOP + 22}" fill="#fff">{decision.op}</text>'
    precision = short_name(decision.precision)
    label = f"{decision.op_class}, {precision}"
    yield (
        f'<text x="{middle}" y="{TOP + 40}" fill="#fff" font-size="11">{label}</text>'
    )


def _arrow(index: int, reader: str, plan: Plan) -> Iterator[str]:
    start, end, y = _left(index) - GAP, _left(index), TOP + HEIGHT / 2
    yield (
        f'<path d="M{start} {y}H{end - 6}m-4 -4l6 4l-6 4" fill="none" '
        f'stroke="{LINE}" stroke-width="1.5"/>'
    )
    if cast := _cast_for(reader, plan):
        middle, fill = (start + end) / 2 - 3, COLOURS[cast.to_dtype == plan.low]
        yield (
            f'<rect x="{middle - 21}" y="{y - 10}" width="42" height="20" rx="10" '
            f'fill="{fill}"><title>{cast.why}</title></rect>'
        )
        dtype = short_name(cast.to_dtype)
        yield (
            f'<text x="{middle}" y="{y + 4}" fill="#fff" font-size="11">{dtype}</text>'
        )


def _cast_for(reader: str, plan: Plan) -> Cast | None:
    """Return the cast at run time that stands before an op or the output."""
    found = (cast for cast in plan.runtime_casts if reader in cast.consumers)
    return next(found, None)


def page() -> str:
    """Return the picture of the example."""
    call = load_factory(f"{EXAMPLE}:build")
    return picture(amprewrite.inspect(call.model, args=call.args))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

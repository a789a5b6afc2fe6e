"""Tables and picture of a file of ``benchmarks.speed``.

    python -m benchmarks.speed_plots FILE.json --picture FILE.png

The tables are printed as Markdown: times of a form over those of float32 in the same
mode, with the least and the largest of the processes; and times of each rival over
those of the converted form, as geometric means over models, with the least and the
largest of a model. The picture has a bar for each ratio of the first.
"""

import argparse
import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

BASELINE = "float32"
MODES = ("eager", "compiled", "frozen")
RIVALS = ("float32", "autocast", "bfloat16()")

Ratios = dict[str, tuple[float, float, float]]
"""Time over float32's by name: median, least, largest."""


def ratios(row: dict[str, Any]) -> Ratios:
    """Return the time of each form over float32's in its mode: median, least, largest.

    Args:
        row: A row of the file.
    """
    found: Ratios = {}
    for name, seconds in row["seconds"].items():
        form, mode = name.split(", ")
        reference = row["seconds"].get(f"{BASELINE}, {mode}")
        if form != BASELINE and reference:
            least, largest = row["spread"][name]
            found[name] = seconds / reference, least / reference, largest / reference
    return found


def table(rows: dict[str, Any]) -> str:
    """Return the ratios of all rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows.values() for name in ratios(row)))
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for label, row in rows.items():
        known = ratios(row)
        cells = (
            "{:.2f} ({:.2f}-{:.2f})".format(*known[name]) if name in known else ""
            for name in names
        )
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gains(rows: dict[str, Any], form: str = "promote") -> str:
    """Return the times of rivals over those of a form, as a Markdown table.

    Args:
        rows: The rows of a file.
        form: The form.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for label, row in rows.items():
        shape = label.split(", ")[1]
        for name, seconds in row["seconds"].items():
            rival, mode = name.split(", ")
            ours = row["seconds"].get(f"{form}, {mode}")
            if rival in RIVALS and ours:
                cells = found.setdefault((mode, shape), {})
                cells.setdefault(rival, []).append(seconds / ours)
    lines = ["| | " + " | ".join(RIVALS) + " |", "|---" * (len(RIVALS) + 1) + "|"]
    for (mode, shape), cells in found.items():
        texts = [_mean(cells.get(rival, [])) for rival in RIVALS]
        lines.append(f"| {mode}, {shape} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _mean(found: list[float]) -> str:
    """Return the geometric mean of ratios, with the least and the largest."""
    if not found:
        return ""
    return f"{geometric_mean(found):.2f} ({min(found):.2f}-{max(found):.2f})"


def draw(rows: dict[str, Any], picture: Path) -> None:
    """Write a picture: a panel for each mode and shape, a group of bars for a model."""
    import matplotlib as mpl  # noqa: PLC0415  # slow, and not always there

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  # as above

    groups: dict[tuple[str, str], dict[str, Ratios]] = {}
    for label, row in rows.items():
        model, shape = label.split(", ")
        for name, found in ratios(row).items():
            form, mode = name.split(", ")
            panel = groups.setdefault((mode, shape), {})
            panel.setdefault(model, {})[form] = found
    groups = dict(sorted(groups.items(), key=lambda item: MODES.index(item[0][0])))
    most = max(map(len, groups.values()))
    size = 2 + 1.1 * most, 2.6 * len(groups)
    figure, panels = plt.subplots(len(groups), 1, figsize=size, squeeze=False)
    for panel, ((mode, shape), models) in zip(
        panels[:, 0], groups.items(), strict=True
    ):
        forms = list(dict.fromkeys(form for row in models.values() for form in row))
        width = 0.8 / len(forms)
        for number, form in enumerate(forms):
            found = [row.get(form, (0.0, 0.0, 0.0)) for row in models.values()]
            places = [place + number * width for place in range(len(found))]
            low = [median - least for median, least, _ in found]
            high = [largest - median for median, _, largest in found]
            heights = [median for median, _, _ in found]
            panel.bar(places, heights, width, yerr=(low, high), label=form)
        panel.axhline(1.0, color="black", linewidth=0.8)
        middle = 0.4 - width / 2
        panel.set_xticks([p + middle for p in range(len(models))], list(models))
        panel.set_ylabel(f"time / {BASELINE}")
        panel.set_title(f"{mode}, {shape}", loc="left", fontsize="medium")
        panel.legend(fontsize="x-small", ncols=len(forms), loc="upper right")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def main() -> None:
    """Print the tables and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.file.read_text("utf-8"))["rows"]
    print(table(rows), gains(rows), sep="\n\n")
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()

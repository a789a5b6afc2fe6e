"""Table and picture of a file of ``benchmarks.speed``.

    python -m benchmarks.speed_plots FILE.json --picture FILE.png

The table is printed as Markdown: times of a form over the same in float32, in the same
mode, with the least and the largest of the processes. The picture has a bar for each.
"""

import argparse
import json
from pathlib import Path
from typing import Any

BASELINE = "float32"


def ratios(row: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the time of each form over float32's in its mode: median, least, largest.

    Args:
        row: A row of the file.
    """
    found: dict[str, tuple[float, float, float]] = {}
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


def draw(rows: dict[str, Any], picture: Path) -> None:
    """Write a picture with a group of bars for each row, and a panel for each mode."""
    import matplotlib as mpl  # noqa: PLC0415  # slow, and not always there

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  # as above

    names = list(dict.fromkeys(name for row in rows.values() for name in ratios(row)))
    modes = list(dict.fromkeys(name.split(", ")[1] for name in names))
    size = 2 + 1.2 * len(rows), 3 * len(modes)
    figure, panels = plt.subplots(len(modes), 1, figsize=size, squeeze=False)
    for panel, mode in zip(panels[:, 0], modes, strict=True):
        shown = [name for name in names if name.endswith(f", {mode}")]
        width = 0.8 / len(shown)
        for number, name in enumerate(shown):
            found = [ratios(row).get(name, (0.0, 0.0, 0.0)) for row in rows.values()]
            places = [place + number * width for place in range(len(found))]
            low = [median - least for median, least, _ in found]
            high = [largest - median for median, _, largest in found]
            heights = [median for median, _, _ in found]
            label = name.split(", ")[0]
            panel.bar(places, heights, width, yerr=(low, high), label=label)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks([p + 0.4 - width / 2 for p in range(len(rows))], list(rows))
        panel.set_ylabel(f"{mode}: time / {BASELINE}")
        panel.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def main() -> None:
    """Print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.file.read_text("utf-8"))["rows"]
    print(table(rows))
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()

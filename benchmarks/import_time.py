"""Time of ``import amprewrite`` in fresh processes, against another checkout.

git worktree add --detach before 34fcc2e  # where everything was imported at once
python -m benchmarks.import_time --before before --out found.json
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]

LIBRARIES = ("ml_dtypes", "networkx", "numpy", "pydantic", "rich", "scipy", "typer")
"""Dependencies, any of which an import could load."""

COUNTS = (
    "import sys, amprewrite; "
    "own = [n for n in sys.modules if n.partition('.')[0] == 'amprewrite']; "
    f"print(len(sys.modules), len(own), *set({LIBRARIES}) & set(sys.modules))"
)


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package of ``checkout``, outside of both checkouts."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        cwd=Path(sys.executable).parent,
        capture_output=True,
        text=True,
        check=True,
    )


def own_seconds(checkout: Path) -> float:
    """Return the seconds that ``-X importtime`` gives for the package and all below."""
    done = run(checkout, "-X", "importtime", "-c", "import amprewrite")
    rows = [line.split("|") for line in done.stderr.splitlines()]
    found = [row[1] for row in rows if row[-1].strip() == "amprewrite"]
    return float(found[-1]) / 1e6


def wall_seconds(checkout: Path, statement: str) -> float:
    """Return the seconds from the start to the end of a process."""
    start = time.perf_counter()
    run(checkout, "-c", statement)
    return time.perf_counter() - start


def measure(checkout: Path) -> dict[str, float]:
    """Return the times of one round."""
    return {
        "importtime": own_seconds(checkout),
        "process": wall_seconds(checkout, "import amprewrite"),
        "bare process": wall_seconds(checkout, "pass"),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    names = ("lower quartile", "median", "upper quartile")
    return dict(zip(names, (round(x, 4) for x in quartiles), strict=True))


def loaded(checkout: Path) -> dict[str, object]:
    """Return what is loaded: counts of modules, and the dependencies among them."""
    modules, own, *libraries = run(checkout, "-c", COUNTS).stdout.split()
    return {
        "modules": int(modules),
        "own modules": int(own),
        "dependencies": sorted(libraries),
    }


def commit(checkout: Path) -> str:
    """Return the commit of ``checkout``."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="another checkout")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkouts = {"before": options.before, "now": ROOT}
    counts = {name: loaded(checkout) for name, checkout in checkouts.items()}
    rounds = [
        {name: measure(checkout) for name, checkout in checkouts.items()}
        for _ in range(options.rounds)
    ]
    ratios = {
        kind: spread([found["now"][kind] / found["before"][kind] for found in rounds])
        for kind in ("importtime", "process")
    }
    seconds = {
        name: {
            kind: spread([r[name][kind] for r in rounds]) for kind in rounds[0][name]
        }
        for name in checkouts
    }
    found = {
        "what": "fresh processes with bytecode, both checkouts in every round; "
        "ratios are now over before within a round, importtime is the time that "
        "-X importtime gives for the package and all that it imports",
        "before": commit(options.before),
        "rounds": options.rounds,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in LIBRARIES},
        "ratio": ratios,
        "loaded": counts,
        "seconds": seconds,
    }
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

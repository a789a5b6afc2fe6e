"""Fetch the libraries of the HTML page from the npm registry.

    python -m tools.page_libraries           # fetch and write assets/vendor
    python -m tools.page_libraries --check   # fetch, compare, write nothing

Needs ``npm``. Versions are pinned here; npm checks each package against the registry's
hash, and ``versions.json`` holds the hash of each file that is taken. A new version is
a new line here and a run.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "amprewrite" / "page" / "assets" / "vendor"
VERSIONS = "versions.json"


@dataclass(frozen=True)
class Pinned:
    """One library, its version, and the files of its package that the page needs."""

    name: str
    version: str
    licence: str
    files: tuple[str, ...]


LIBRARIES = (
    Pinned("cytoscape", "3.34.4", "MIT", ("dist/cytoscape.min.js", "LICENSE")),
    Pinned(
        "cytoscape-dagre", "4.0.1", "MIT", ("dist/cytoscape-dagre.min.js", "LICENSE")
    ),
    Pinned("@dagrejs/dagre", "3.0.0", "MIT", ("LICENSE",)),  # inside cytoscape-dagre,
    Pinned("@dagrejs/graphlib", "4.0.1", "MIT", ("LICENSE",)),  # and this one
    Pinned(
        "tabulator-tables",
        "6.5.3",
        "MIT",
        (
            "dist/js/tabulator.min.js",
            "dist/css/tabulator_simple.min.css",
            "LICENSE",
        ),
    ),
    Pinned(
        "uplot",
        "1.6.32",
        "MIT",
        ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE"),
    ),
)
"""In the order in which a page loads them."""


def fetched(folder: Path) -> dict[str, bytes]:
    """Return the wanted files, fetched by npm into ``folder``, with ``versions.json``.

    Raises:
        SystemExit: npm is missing or fails, or a package has another licence.
    """
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not installed; want it on the path to fetch the libraries")
    (folder / "package.json").write_text('{"private": true}\n')
    wanted = [f"{library.name}@{library.version}" for library in LIBRARIES]
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    command += ["--save-exact", *wanted]
    subprocess.run(command, cwd=folder, check=True)  # noqa: S603  # all of it is above
    found: dict[str, bytes] = {}
    rows: list[dict[str, object]] = []
    for library in LIBRARIES:
        package = folder / "node_modules" / library.name
        described = json.loads((package / "package.json").read_text())
        if described["license"] != library.licence:
            sys.exit(f"{library.name} has licence {described['license']!r}")
        hashes: dict[str, str] = {}
        for file in library.files:
            data = (package / file).read_bytes()
            name = Path(file).name
            if name == "LICENSE":
                short = library.name.removeprefix("@").replace("/", "-")
                name = f"{short}.LICENSE.txt"
            found[name] = data
            hashes[name] = hashlib.sha256(data).hexdigest()
        rows.append(
            {
                "name": library.name,
                "version": library.version,
                "licence": library.licence,
                "files": hashes,
            }
        )
    found[VERSIONS] = (json.dumps(rows, indent=1) + "\n").encode()
    return found


def differing(found: dict[str, bytes], folder: Path = FOLDER) -> list[str]:
    """Return the names of files that differ from those in ``folder``."""
    there = {path.name: path.read_bytes() for path in folder.glob("*")}
    names = sorted(found.keys() | there.keys())
    return [name for name in names if found.get(name) != there.get(name)]


def main() -> None:
    """Fetch the libraries, then write or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        found = fetched(Path(folder))
    if check:
        names = differing(found)
        sys.exit(f"differ from the registry: {', '.join(names)}" if names else 0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in differing(found):
        if name in found:
            (FOLDER / name).write_bytes(found[name])
        else:
            (FOLDER / name).unlink()


if __name__ == "__main__":
    main()

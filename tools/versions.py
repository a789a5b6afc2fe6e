"""Run the tests of the frameworks in one environment of versions after another.

python -m tools.versions           # all of them, and the table of docs/versions.md
python -m tools.versions 2.11 low  # those with these words in their names
python -m tools.versions --slice   # some tests with the newest torch alone, as CI does

Environments stand in the folder of AMPREWRITE_VERSIONS, by default in the cache of the
user, 5 to 6 GB each, and are used again; --remove removes each one after its tests.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
MARKS = "<!-- versions -->", "<!-- end of versions -->"
"""Lines around the table in the page."""

NEWEST = "constraints-newest.txt"
"""File with the newest releases that the tests pass with."""

TOOLS = ("pytest", "pytest-xdist", "hypothesis")
LIBRARIES = (
    *("equinox", "flax", "optax", "optimistix", "transformers", "safetensors"),
    "flatbuffers",  # jax.export writes with it
)
"""Libraries whose models the tests convert."""

FAST = ("tests/unit/frameworks", "tests/golden")
"""Folders of tests, without the slow ones."""

WHOLE = (
    *("custom_gradients", "jax_checkpoint", "writes", "export", "state", "jax_loops"),
    *("same_kind", "same_kind_changes", "same_kind_use"),
)
"""Files of tests/integration, with the slow ones; and the README's blocks."""

SLICE = (
    *(f"tests/unit/frameworks/torch_fx/{n}" for n in ("capture", "compat")),
    *("tests/integration/test_custom_gradients.py", "tests/integration/test_export.py"),
)
"""Tests of CI with the newest torch: those of its private names, and of gradients."""


@dataclass(frozen=True)
class Versions:
    """An environment.

    Attributes:
        name: Words by which it is chosen.
        python: Version of Python.
        torch: Release of torch.
        jax: Release of JAX.
        constraints: Files with releases of other packages; later ones win.
        lowest: Whether each direct dependency of the package is the least release.
    """

    name: str
    python: str
    torch: str
    jax: str
    constraints: tuple[str, ...] = ("constraints.txt",)
    lowest: bool = False

    @property
    def pins(self) -> dict[str, str]:
        """The releases of packages, by their names."""
        found: dict[str, str] = {}
        for file in self.constraints:
            found |= pinned((ROOT / file).read_text(encoding="utf-8"))
        if self.lowest:
            found |= least()
        found.pop("jaxlib", None)
        return {**found, "torch": self.torch, "jax": self.jax}


def newest(package: str) -> str:
    """Return the release of a package in :data:`NEWEST`."""
    return pinned((ROOT / NEWEST).read_text(encoding="utf-8"))[package]


def pinned(text: str) -> dict[str, str]:
    """Return the releases in a constraints file, by the names of the packages."""
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


def least() -> dict[str, str]:
    """Return the least release of each direct dependency, as pyproject.toml has it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines: list[str] = tomllib.loads(text)["project"]["dependencies"]
    return dict(line.split(">=") for line in lines)


def environments() -> tuple[Versions, ...]:
    """Return every environment: pairs of versions, the least ones first."""
    now = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    return (
        Versions("lowest", "3.11", "2.11.0", "0.10.1", lowest=True),
        Versions("2.11", "3.12", "2.11.0", "0.10.1"),
        Versions("2.12", "3.11", "2.12.0", now["jax"]),
        Versions("2.13 pinned", "3.11", now["torch"], now["jax"]),
        Versions("2.14", "3.11", "2.14.1", now["jax"]),
        Versions(
            f"{newest('torch')} newest",
            "3.13",
            newest("torch"),
            newest("jax"),
            ("constraints.txt", NEWEST),
        ),
    )


class UnavailableError(RuntimeError):
    """An environment cannot be had: no such Python, or pip finds no package."""


def interpreter(version: str) -> str:
    """Return the path of a Python.

    Raises:
        UnavailableError: There is none.
    """
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    more = sorted(map(str, root.glob(f"versions/{version}.*/bin/python")))
    for found in (sys.executable, shutil.which(f"python{version}"), *more):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        if found and _output([found, "-c", code]) == version:
            return found
    raise UnavailableError(f"no Python {version} was found")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    return done.stdout.strip()


def built(versions: Versions, folder: Path, packages: Iterable[str]) -> Path:
    """Return the Python of an environment, which is made if it is not there.

    Args:
        versions: The releases.
        folder: Folder of the environment.
        packages: Names of packages beside the frameworks.

    Raises:
        UnavailableError: There is no such Python, or pip has no such framework.
        CalledProcessError: Other packages do not fit.
    """
    python = folder / "bin" / "python"
    done = folder / "complete"
    wanted = "\n".join(f"{name}=={pin}" for name, pin in versions.pins.items())
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter(versions.python), "-m", "venv", folder], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(wanted, encoding="utf-8")
    install = [python, "-m", "pip", "install", "-q"]
    # Instead of constraints that pip is set to have, which may cap a framework.
    environ = {**os.environ, "PIP_CONSTRAINT": str(constraints)}
    for name in ("torch", *(name for name in packages if name == "jax")):
        if subprocess.run([*install, name], check=False, env=environ).returncode:
            shutil.rmtree(folder)
            msg = f"pip cannot install {name} {versions.pins[name]}"
            raise UnavailableError(msg)
    install += ["-e", f"{ROOT}[torch]", *packages]
    subprocess.run(install, check=True, env=environ)
    done.write_text(wanted, encoding="utf-8")
    return python


@dataclass(frozen=True)
class Result:
    """Numbers of tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Result") -> "Result":
        """Return the sums."""
        return Result(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )


def run_tests(python: Path, arguments: Sequence[str]) -> Result:
    """Run pytest with the Python of an environment; return the numbers of its tests.

    Args:
        python: The Python.
        arguments: Files and options.

    Returns:
        The numbers; one failure where pytest itself ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tests.xml")
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={file}", *arguments]
        # On the CPU, as each machine has one.
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        code = subprocess.run(command, check=False, cwd=ROOT, env=environ).returncode
        result = counts(file.read_text(encoding="utf-8")) if file.exists() else Result()
    return result if result.failed or not code else result + Result(failed=1)


def counts(xml: str) -> Result:
    """Return the numbers of tests in a report of pytest."""
    suites = list(ET.fromstring(xml).iter("testsuite"))  # pytest's own

    def total(key: str) -> int:
        return sum(int(suite.get(key, 0)) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    return Result(total("tests") - failed - skipped, failed, skipped)


def all_tests(python: Path) -> Result:
    """Run every test that depends on a framework."""
    whole = (f"tests/integration/test_{name}.py" for name in WHOLE)
    workers = ("-n", os.environ.get("AMPREWRITE_WORKERS", "2"))
    fast = run_tests(python, [*FAST, "-m", "not slow and not gpu", *workers])
    slow = [*whole, "tests/docs/test_readme.py", "-m", "not gpu", *workers]
    return fast + run_tests(python, slow)


RELEASES = ("python", "torch", "jax", "numpy", "transformers", "flax")
"""Columns of the table."""


def releases(python: Path) -> dict[str, str]:
    """Return the releases in an environment, of Python and of packages."""
    code = (
        "import platform; from importlib.metadata import version\n"
        f"print(platform.python_version(), *map(version, {RELEASES[1:]!r}))"
    )
    return dict(zip(RELEASES, _output([str(python), "-c", code]).split(), strict=True))


def row(found: Mapping[str, str], result: Result, day: str) -> str:
    """Return a line of the table."""
    numbers = result.passed, result.failed, result.skipped
    cells = [*(found[name] for name in RELEASES), *map(str, numbers), day]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| Python | torch | JAX | NumPy | transformers | flax | passed | failed | skipped "
    "| date |\n|---|---|---|---|---|---|---|---|---|---|"
)


def with_rows(page: str, rows: Mapping[str, str]) -> str:
    """Return the text of the page with lines of its table replaced or added.

    Args:
        page: The text.
        rows: Lines, by the versions of Python, torch and JAX that they begin with.
    """
    before, table = page.split(MARKS[0])
    table, after = table.split(MARKS[1])
    old = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    lines = {key_of(line): line for line in old} | dict(rows)
    ordered = sorted(lines.values(), key=lambda line: (_numbers(line), line))
    return "\n".join((f"{before}{MARKS[0]}", HEAD, *ordered, f"{MARKS[1]}{after}"))


def key_of(line: str) -> str:
    """Return the versions of Python, torch, JAX and NumPy in a line of the table."""
    return "|".join(line.split("|")[1:5])


def _numbers(line: str) -> list[int]:
    """Return the numbers of the release of torch in a line of the table."""
    return [int(n) for n in re.findall(r"\d+", line.split("|")[2].partition("+")[0])]


def tried(versions: Versions, folder: Path, *, removes: bool) -> bool:
    """Run the tests of an environment and write its line; return whether all passed.

    Raises:
        UnavailableError: It cannot be made.
    """
    place = folder / versions.name.replace(" ", "-")
    began = time.monotonic()
    python = built(versions, place, ("jax", *TOOLS, *LIBRARIES))
    made = time.monotonic()
    result = all_tests(python)
    line = row(releases(python), result, datetime.now(UTC).date().isoformat())
    text = with_rows(PAGE.read_text(encoding="utf-8"), {key_of(line): line})
    PAGE.write_text(text, encoding="utf-8")
    done = time.monotonic()
    print(f"{line}\n{made - began:.0f} s to install, {done - made:.0f} s of tests")
    if removes:
        shutil.rmtree(place)
    return not result.failed


def tried_slice() -> bool:
    """Run some tests with the newest torch; return whether all passed.

    The environment is of the Python that runs, and is removed.
    """
    release = newest("torch")
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    jax = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))["jax"]
    versions = Versions("newest", python, release, jax)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        try:
            place = built(versions, Path(folder, "newest"), TOOLS)
        except UnavailableError as error:
            print(f"{error}: the tests with the newest torch are skipped")
            return True
        made = time.monotonic()
        chosen = [*SLICE, "-m", "not slow and not gpu", "-n", "2"]
        result = run_tests(place, chosen)
        done = time.monotonic()
    print(
        f"torch {release}: {result.passed} passed, {result.failed} failed; "
        f"{made - began:.0f} s to install, {done - made:.0f} s of tests"
    )
    return not result.failed


def main() -> int:
    """Run the tests that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="words in the names of environments")
    parser.add_argument("--slice", action="store_true", help="the slice of CI")
    parser.add_argument("--remove", action="store_true", help="keep no environment")
    given = parser.parse_args()
    if given.slice:
        return 0 if tried_slice() else 1
    cache = Path.home() / ".cache" / "amprewrite" / "versions"
    folder = Path(os.environ.get("AMPREWRITE_VERSIONS", cache))
    every = environments()
    chosen = [v for v in every if not given.names or {*given.names} & {*v.name.split()}]
    good = bool(chosen)
    for versions in chosen:
        print(f"torch {versions.torch}, JAX {versions.jax}, Python {versions.python}:")
        try:
            good &= tried(versions, folder, removes=given.remove)
        except UnavailableError as error:
            print(f"{error}: left out")
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

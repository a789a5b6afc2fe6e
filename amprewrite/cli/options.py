"""Options that several commands share, and the files that they name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from amprewrite.cli.show import say
from amprewrite.errors import PolicyError, TargetError
from amprewrite.plan import Plan
from amprewrite.plan.bounds import FASTEST
from amprewrite.policy import shipped_policies


def complete_policy(typed: str) -> list[str]:
    """Return the shipped policies that begin as typed, for the shell."""
    return [name for name in shipped_policies() if name.startswith(typed)]


def complete_placement(typed: str) -> list[str]:
    """Return the placements that begin as typed, for the shell."""
    from amprewrite.passes import PLACEMENTS

    return [name for name in (*PLACEMENTS, FASTEST) if name.startswith(typed)]


TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py:name or package.module:name, a function without arguments that "
        "gives (model, args) or (model, args, kwargs), or such a tuple; a .pt2 file of "
        "torch.export.save; or a folder of transformers with config.json and weights.",
    ),
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="A shipped policy, a .toml file or a jmp string. Without it bf16.",
        autocompletion=complete_policy,
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        help="How the casts are placed: promote, optimal, fastest or paint. Without it "
        "optimal where a tolerance is given, else promote.",
        autocompletion=complete_placement,
    ),
]
RunBy = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="How the result will run: eager or compiled. Without it compiled for "
        "JAX, eager for torch.",
    ),
]
ToleranceText = Annotated[
    str | None,
    typer.Option(
        "--tolerance",
        metavar="NUMBER|autocast",
        help="The greatest relative error of the outputs, or that of torch.autocast.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="KEY=GLOB,...,class=CLASS",
        help="A rule tried before the policy's own, such as "
        "'path=decoder.*,class=deny'. May be given several times.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
Graph = Annotated[bool, typer.Option("--graph", help="Print the program as text.")]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE.html",
        help="Write one page with tables and the program as a graph with its casts.",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="Apply this plan instead of making one. Without --policy, its policy is "
        "used.",
    ),
]


def tolerance_of(text: str | None) -> float | str | None:
    """Return ``text`` as a number if it is one, else unchanged, to be checked later."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def rules(texts: Iterable[str]) -> list[dict[str, object]]:
    """Return the rules that texts such as ``path=decoder.*,class=deny`` spell.

    Raises:
        PolicyError: A part is no ``key=value``.
    """
    tables: list[dict[str, object]] = []
    for text in texts:
        pairs = [part.partition("=") for part in text.split(",")]
        if wrong := [key for key, equals, _ in pairs if not equals]:
            msg = (
                f"--override {text!r}: {wrong[0]!r} has no '='; want "
                f"KEY=GLOB,...,class=CLASS, such as 'path=decoder.*,class=deny'"
            )
            raise PolicyError(msg)
        tables.append({key.strip(): value.strip() for key, _, value in pairs})
    return tables


def html_page(path: Path | None) -> Path | None:
    """Return the path of a page, refused now if it cannot be written later.

    Raises:
        TargetError: Its folder does not exist, or it has another suffix.
    """
    return writable(path, ".html", ".htm", option="--html")


def writable(
    path: Path | None, *suffixes: str, option: str = "--output"
) -> Path | None:
    """Return the path of an output file, refused now if it cannot be written later.

    Raises:
        TargetError: Its folder does not exist, or its suffix says no known kind.
    """
    if path is not None and path.suffix not in suffixes:
        msg = f"{option} {path}: want a name that ends in {' or '.join(suffixes)}"
        raise TargetError(msg)
    if path is not None and not path.parent.is_dir():
        msg = f"{option} {path}: there is no folder {path.parent}"
        raise TargetError(msg)
    return path


def load_plan(path: Path | None) -> Plan | None:
    """Return the plan saved at ``path``, if there is one.

    Raises:
        TargetError: There is no such file.
    """
    if path is None:
        return None
    if not path.is_file():
        msg = f"--plan {path}: no such file; want one written by --output"
        raise TargetError(msg)
    return Plan.load(path)


def save_plan(plan: Plan, path: Path) -> None:
    """Write ``plan`` to ``path`` and say so."""
    plan.save(path)
    say(f"wrote {path}: {len(plan.decisions)} decisions, {len(plan.casts)} casts")

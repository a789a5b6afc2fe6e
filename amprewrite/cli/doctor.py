"""The command for the installation: versions, devices, a trial of each framework."""

from collections.abc import Iterator

import typer

from amprewrite.cli.group import FAILED, app
from amprewrite.cli.options import AsJson
from amprewrite.cli.progress import progress
from amprewrite.cli.show import answer, say
from amprewrite.doctor import Diagnosis, Trial, diagnose

HAS = {True: "yes", False: "no", None: "unknown"}


@app.command(
    epilog="Exit codes: 0 conversions work; 1 one failed, or none is possible."
)
def doctor(*, as_json: AsJson = False) -> None:
    """Show versions and devices, and try a conversion with each installed framework.

    The conversion is of a small model to bf16, verified against float64.
    """
    with progress(1) as work:
        work.step("convert and verify a small model with each framework")
        found = diagnose()
    answer(found.to_json, *_lines(found), as_json=as_json)
    for trial in found.trials:
        if trial.trace:
            say(trial.trace.rstrip())
    for problem in found.problems:
        say(f"amprewrite: {problem}")
    if found.problems:
        raise typer.Exit(FAILED)


def _lines(found: Diagnosis) -> Iterator[str]:
    versions = {"python": found.python, **found.versions}
    width = max(map(len, versions))
    for name, version in versions.items():
        yield f"{name:{width}}  {version or 'not installed'}"
    for trial in found.trials:
        yield ""
        yield f"{trial.framework} on {trial.device}".removesuffix(" on ")
        if trial.device:
            yield f"  bfloat16 instructions: {HAS[trial.bfloat16]} ({trial.why})"
        yield f"  conversion: {_result(trial)}"


def _result(trial: Trial) -> str:
    if trial.failure:
        return f"FAILED: {trial.failure}"
    bound = f", bound {trial.bound:.3g}" if trial.bound is not None else ""
    return f"works, error {trial.error:.3g} against float64{bound}"

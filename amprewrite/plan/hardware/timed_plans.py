"""Plans that were timed on this machine, and their files.

A file has the plan that was the fastest one of a program under some conditions, in
``$XDG_CACHE_HOME/amprewrite/timed``. Its name depends on the program with its extents
and on all conditions, so that plans timed otherwise are not found.
"""

import hashlib
import json
import os
from pathlib import Path

from amprewrite.errors import PlanMismatchError, warn
from amprewrite.plan.hardware.calibration import cache_folder
from amprewrite.plan.model import Plan

Conditions = tuple[str, ...]
"""Settings beside the program on which times depend: device, target, policy, ..."""


Program = tuple[str, ...]
"""A program with its extents, as lines."""


def timed_file(program: Program, conditions: Conditions) -> Path:
    """Return the file of the plan for a program."""
    text = "\n".join((*program, *conditions))
    key = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return cache_folder() / "timed" / f"{key[:24]}.json"


def load_timed(program: Program, conditions: Conditions) -> Plan | None:
    """Return the plan that was the fastest for a program; None if none was timed.

    A file that cannot be used is ignored with a warning: the plans are timed again.
    """
    file = timed_file(program, conditions)
    if not file.exists():
        return None
    try:
        return Plan.load(file)
    except PlanMismatchError as error:
        reason = str(error).partition("\n")[0]
        warn(f"{reason}; the plans of the program are timed again")
        return None


def save_timed(plan: Plan, program: Program, conditions: Conditions) -> None:
    """Write the plan for a program atomically: another process may be reading it.

    A folder that cannot be written is a warning: the conversion is right without it.
    """
    file = timed_file(program, conditions)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(plan.to_json()), "utf-8")
        part.replace(file)
    except OSError as error:
        warn(
            f"{file}: cannot be written ({error.strerror}), so that the plans of this "
            f"program are timed again next time; set XDG_CACHE_HOME to a folder that "
            f"can"
        )

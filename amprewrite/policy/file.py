"""Read a small text file of unknown origin, within limits."""

import stat
from collections.abc import Callable
from pathlib import Path

from amprewrite.errors import AmpError


def read_text(
    path: Path, largest: int, want: str, refuse: Callable[[str], AmpError]
) -> str:
    """Return the text of the regular file at ``path``.

    A pipe or a device is refused before it is opened: reading it may never end.

    Args:
        path: The file.
        largest: Most bytes that it may have.
        want: Description of the expected file, for messages: ``a TOML file``.
        refuse: Makes the error for a path that is no regular file, is too large, cannot
            be read, or is no UTF-8.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            raise refuse(f"cannot be read (it is {kind}); want {want}")
        with path.open("rb") as file:
            data = file.read(largest + 1)  # it may grow while it is read
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        if isinstance(error, AmpError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot be read ({reason}); want {want}") from error
    if len(data) > largest:
        raise refuse(f"has more than {largest:,} bytes; want {want} of at most that")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(f"is no text in UTF-8 ({error}); want {want}") from error

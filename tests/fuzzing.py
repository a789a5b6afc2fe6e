"""Which seeds the fuzzers try: a slice in every run of the tests, all by `poe fuzz`."""

import os

LONG = "AMPREWRITE_FUZZ"
"""Environment variable: set to 1, the fuzzers try all their programs."""

START = "AMPREWRITE_FUZZ_START"
"""Environment variable: the first seed, so that a long run can try new programs."""


def seeds(short: int, long: int) -> range:
    """Return the seeds of the programs to try.

    Args:
        short: How many in every run of the tests.
        long: How many in a long run.
    """
    start = int(os.environ.get(START, "0"))
    return range(start, start + (long if os.environ.get(LONG) == "1" else short))

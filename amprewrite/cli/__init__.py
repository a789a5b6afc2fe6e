"""The command line: the only package that prints or exits.

Results go to stdout, as JSON with ``--json``; progress, warnings and errors go to
stderr. Exit codes: 0, done; 1, verification failed; 2, a mistake in the command or in a
file or model that it names, printed in one line, and with ``--json`` also as an object
with the key ``error`` on stdout; 3, an internal error, with its traceback.
"""

from amprewrite.cli import doctor, formats, machine, policies, promotion
from amprewrite.cli.group import app, main
from amprewrite.cli.models import blame, convert, explain, inspect, pareto, verify

# Importing the commands adds them.
__all__ = [
    "app",
    "blame",
    "convert",
    "doctor",
    "explain",
    "formats",
    "inspect",
    "machine",
    "main",
    "pareto",
    "policies",
    "promotion",
    "verify",
]

"""The command line: the only package that prints or exits.

What a command was asked for goes to stdout, as JSON with ``--json``; everything else
that it has to say goes to stderr. Exit 0: done; 1: verification failed; 2: a mistake in
what was asked, said in one line, and with ``--json`` as an object with the key
``error`` on stdout, too; 3: an error of this package itself, with its traceback.
"""

from amprewrite.cli import curve, machine, models, policies, promotion
from amprewrite.cli.group import app, main

# Importing the commands adds them.
__all__ = ["app", "curve", "machine", "main", "models", "policies", "promotion"]

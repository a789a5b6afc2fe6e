"""Culprits: the ops that cause the error of the outputs, and rules that help."""

from amprewrite.verify.culprits.blame import Blame, Blamed, blame
from amprewrite.verify.culprits.effects import Effects, Live
from amprewrite.verify.culprits.fix import Fix, fix

__all__ = ["Blame", "Blamed", "Effects", "Fix", "Live", "blame", "fix"]

"""The passes: a program graph and a policy in, a plan out. No framework here."""

from amprewrite.passes.pipeline import PLACEMENTS, Setting, check_placement, make_plan

__all__ = ["PLACEMENTS", "Setting", "check_placement", "make_plan"]

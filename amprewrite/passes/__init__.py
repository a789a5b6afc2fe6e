"""The passes: a program graph and a policy in, a plan out. No framework here."""

from amprewrite.passes.pipeline import PLACEMENTS, make_plan

__all__ = ["PLACEMENTS", "make_plan"]

"""The passes: from a program graph and a policy to a plan; no framework is imported."""

from amprewrite.passes.pipeline import (
    PLACEMENTS,
    Setting,
    check_placement,
    exact_values,
    make_plan,
)

__all__ = ["PLACEMENTS", "Setting", "check_placement", "exact_values", "make_plan"]

"""Options of the pass."""

from amprewrite.unit_scaling.program import Settings


def test_options_that_are_left_out_are_those_of_the_public_function():
    settings = Settings()
    assert (settings.constraint, settings.tau, dict(settings.mult)) == ("auto", 0.5, {})

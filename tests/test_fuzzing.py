"""Which seeds the fuzzers try."""

from tests.fuzzing import LONG, START, seeds


def test_a_plain_run_tries_a_slice(monkeypatch):
    monkeypatch.delenv(LONG, raising=False)
    monkeypatch.delenv(START, raising=False)
    assert seeds(3, 100) == range(3)


def test_a_long_run_tries_all_from_the_seed_that_is_asked_for(monkeypatch):
    monkeypatch.setenv(LONG, "1")
    monkeypatch.setenv(START, "50")
    assert seeds(3, 100) == range(50, 150)

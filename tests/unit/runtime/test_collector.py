import gc
from collections.abc import Iterator

import pytest

from amprewrite.runtime.collector import collector_paused


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@collector_paused()
def is_paused(*, fail: bool = False) -> bool:
    assert not fail
    return not gc.isenabled()


def test_the_collector_is_paused_and_goes_on() -> None:
    assert is_paused()
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error() -> None:
    with pytest.raises(AssertionError):
        is_paused(fail=True)
    assert gc.isenabled()


@pytest.mark.usefixtures("collector_off")
def test_a_collector_that_was_off_stays_off() -> None:
    assert is_paused()
    assert not gc.isenabled()

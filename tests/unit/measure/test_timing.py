"""How things are timed, and what is known of the processor."""

from pathlib import Path

import pytest

from amprewrite.measure import timing
from amprewrite.measure.timing import (
    ACCELERATOR,
    CPU,
    LEAST_ROUNDS,
    bfloat16_instructions,
    medians,
    processor,
    raced,
    ran_out_of_memory,
    scope_of,
)


class Clock:
    """A clock that runs set forward; so that nothing is really timed."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, list[str]()

    def takes(self, name: str, *seconds: float):
        """A run that takes so long in each round: once before the clock, once by it."""

        def run() -> str:
            self.order.append(name)
            turn = self.order.count(name) // 2 - 2  # the first two are no round
            self.now += seconds[turn % len(seconds)]
            return name

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def test_medians_are_those_of_interleaved_rounds(clock: Clock) -> None:
    waited: list[object] = []
    runs = {"full": clock.takes("full", 1.0), "low": clock.takes("low", 3.0)}
    assert medians(runs, waited.append, 0.0) == {"full": 1.0, "low": 3.0}
    rounds = clock.order[4:]  # two calls each before
    assert rounds[:8] == ["full", "full", "low", "low", "low", "low", "full", "full"]
    assert len(rounds) == 4 * LEAST_ROUNDS
    assert waited == clock.order


def test_what_slows_down_both_alike_does_not_count(clock: Clock) -> None:
    """Twice as long in most rounds, though the medians are 1 and 8."""
    runs = {
        "full": clock.takes("full", 1.0, 4.0, 4.0, 1.0, 1.0),
        "low": clock.takes("low", 2.0, 8.0, 8.0, 8.0, 8.0),
    }
    assert medians(runs, lambda _: None, 0.0) == {"full": 1.0, "low": 2.0}


def test_short_runs_are_repeated(clock: Clock) -> None:
    runs = {"short": clock.takes("short", timing.CHUNK / 4)}
    assert medians(runs, lambda _: None, 0.0)["short"] == pytest.approx(
        timing.CHUNK / 4
    )
    assert len(clock.order) == 2 + LEAST_ROUNDS * (1 + 4)


def test_more_rounds_are_run_while_there_is_time(clock: Clock) -> None:
    medians({"run": clock.takes("run", 1.0)}, lambda _: None, 30.0)
    assert len(clock.order) == 2 + 2 * 15


def test_a_processor_is_known_by_its_name_and_instructions(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor : 0\nmodel name\t: Fast One 3000\n"
        "flags\t\t: fpu avx2 avx512_bf16 amx_bf16 avx2_not\n\nprocessor : 1\n"
    )
    assert processor(info) == ("Fast One 3000", "avx2 avx512_bf16 amx_bf16")
    arm = tmp_path / "arm"
    arm.write_text("processor : 0\nFeatures\t: fp asimd fphp bf16\n")
    assert processor(arm) == ("", "bf16 fphp")
    assert processor(tmp_path / "none") == ("", "")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("flags : avx2 avx512_bf16 amx_bf16", (True, "avx512_bf16, amx_bf16")),
        ("Features : fphp bf16", (True, "bf16")),
        ("flags : avx2 avx512f", (False, "none of avx512_bf16, amx_bf16, bf16")),
    ],
)
def test_instructions_for_bfloat16(tmp_path: Path, flags: str, found: object) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"{flags}\n")
    assert bfloat16_instructions(info) == found
    unknown, why = bfloat16_instructions(tmp_path / "none")
    assert unknown is None
    assert "does not report" in why


def test_larger_contractions_are_timed_on_accelerators() -> None:
    assert scope_of("cpu") is CPU
    assert scope_of("cuda") is scope_of("gpu") is ACCELERATOR
    assert set(CPU.products) < set(ACCELERATOR.products)
    assert ACCELERATOR.elements > CPU.elements


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Failed to allocate request"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_full_device_is_told_from_other_failures(
    error: Exception, *, is_full: bool
) -> None:
    assert ran_out_of_memory(error) == is_full


def test_a_run_that_is_much_slower_is_not_timed_again(clock: Clock) -> None:
    runs = {
        "full": clock.takes("full", 1.0),
        "close": clock.takes("close", 2.0),
        "emulated": clock.takes("emulated", 50.0),
    }
    found = raced(runs, lambda _: None, 0.0)
    assert found == {"full": 1.0, "close": 2.0, "emulated": 50.0}
    assert clock.order.count("emulated") == 2
    assert clock.order.count("close") > 2 * LEAST_ROUNDS


def test_a_run_that_is_interrupted_once_is_timed(clock: Clock) -> None:
    """A call of a small program that is interrupted takes fifty times as long."""
    calls: list[float] = []

    def interrupted() -> None:
        calls.append(0.005 if len(calls) == 1 else 1e-4)
        clock.now += calls[-1]

    runs = {"low": clock.takes("low", 2e-4), "full": interrupted}
    found = raced(runs, lambda _: None, 0.0)
    assert found["full"] == pytest.approx(1e-4)
    assert len(calls) > 2 * LEAST_ROUNDS

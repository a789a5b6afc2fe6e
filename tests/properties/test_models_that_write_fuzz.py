"""Random models that write: a conversion and its like leave them as they were."""

import warnings
from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

import amprewrite
from tests.fuzzing import seeds
from tests.properties.model_states import (
    differences,
    random_states,
    seed_all,
    state_of,
)
from tests.properties.writers import WIDTH, random_model

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]

CALLS = 3


def way(seed: int) -> tuple[bool, str, bool]:
    """Return whether a model is converted lazily, by which policy, for training."""
    return bool(seed & 1), "bf16" if seed & 2 else "off", bool(seed & 4)


def unchanged(model: Any, what: str, action: Any) -> Any:
    """Run an action, and check that the model and random states are as before."""
    seed_all(7)
    before, numbers = state_of(model), random_states()
    try:
        return action()
    finally:
        assert differences(before, state_of(model), what) == []
        assert random_states() == numbers, what


def inspected(model: Any, policy: str, x: Any) -> None:
    with suppress(amprewrite.errors.AmpError):  # dynamo captures it, in several graphs
        amprewrite.inspect(model, policy, args=(x,))


def fails(model: Any) -> bool:
    """Return whether a model fails on an input of a wrong width."""
    seed_all(7)
    try:
        model(torch.ones(3, WIDTH + 1))
    except Exception:  # noqa: BLE001  # of eager code, or of a capture
        return True
    return False


def check_failing(seed: int) -> None:
    """Check that a call that fails changes what it does in eager code, or nothing."""
    lazy, policy, training = way(seed)
    model, plain = (random_model(seed).train(training) for _ in range(2))
    args = None if lazy else (torch.ones(3, WIDTH),)
    converted = amprewrite.convert(model, policy, args=args)
    before = state_of(model)
    fail = fails(plain)
    eager = state_of(plain, identities=False)
    assert fails(converted) == fail
    if differences(before, state_of(model), "failed") != []:
        now = state_of(model, identities=False)
        assert training
        assert differences(eager, now, "failed", exact=policy == "off") == []


@pytest.mark.parametrize("seed", seeds(12, 500))
def test_a_model_is_as_before_and_writes_once_a_call(seed: int) -> None:
    lazy, policy, training = way(seed)
    model = random_model(seed).train(training)
    plain = random_model(seed).train(training)
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(3, WIDTH, generator=draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = None if lazy else (x,)
        converted = unchanged(
            model, "convert", lambda: amprewrite.convert(model, policy, args=args)
        )
        unchanged(model, "inspect", lambda: inspected(model, policy, x))
        unchanged(model, "verify", lambda: amprewrite.verify(model, converted, (x,)))
        unchanged(
            model,
            "histogram",
            lambda: amprewrite.histogram(model, (x,), gradients=False),
        )
        check_failing(seed)
        before = state_of(model)
        for call in range(CALLS):
            seed_all(call)
            expected, numbers = plain(x), random_states()
            seed_all(call)
            output = converted(x)
            if policy == "off":
                assert torch.equal(output, expected), call
                assert random_states() == numbers
        if not training:
            assert differences(before, state_of(model), "calls") == []
        # Weights may be stored low: those of the plain model are compared.
        now = converted if policy == "off" else amprewrite.original(converted)
        ours, theirs = (state_of(m, identities=False) for m in (now, plain))
        assert differences(ours, theirs, "state", exact=policy == "off") == []

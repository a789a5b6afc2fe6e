"""A monitor finds what goes wrong, and leaves results and state as they are."""

import threading
import warnings

import numpy as np
import pytest

import amprewrite
from amprewrite.errors import AmpWarning, ArgumentError, UnsupportedError


def torch_model():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)
            self.drop, self.down = torch.nn.Dropout(0.5), torch.nn.Linear(16, 4)

        def forward(self, x):
            h = self.norm(torch.nn.functional.gelu(self.up(x)))
            return self.down(self.drop(h * h))

    torch.manual_seed(0)
    return Model()


def test_a_monitored_module_computes_the_same_and_keeps_its_state():
    torch = pytest.importorskip("torch")
    results = []
    for monitored in (False, True):
        model = torch_model()
        converted = amprewrite.convert(model, training=True)
        torch.manual_seed(1)
        watch = amprewrite.monitor(converted, 2) if monitored else None
        outputs = [converted(torch.randn(6, 8)) for _ in range(3)]
        torch.cat(outputs).square().sum().backward()
        held = [value.clone() for value in converted.state_dict().values()]
        state = [*held, torch.get_rng_state()]
        results.append([*outputs, *state, *(p.grad for p in converted.parameters())])
        if watch is not None:
            watch.close()
            assert (watch.calls, len(watch.reports)) == (3, 2)
            assert not converted._forward_pre_hooks
            converted(torch.randn(6, 8))
            assert watch.calls == 3
            assert watch.ok, watch.problems
    assert all(map(torch.equal, *results))


@pytest.fixture
def served():
    torch = pytest.importorskip("torch")
    model = torch_model().eval()
    x = torch.randn(6, 8)
    return model, amprewrite.convert(model, args=(x,)), x


def test_a_clean_model_has_no_problems(served):
    torch = pytest.importorskip("torch")
    model, converted, x = served
    wanted = converted(x)
    with (
        warnings.catch_warnings(),
        amprewrite.monitor(converted, 1, original=model, keep=2) as watch,
    ):
        warnings.simplefilter("error", AmpWarning)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found = watch(x)
        for _ in range(2):
            converted(torch.randn(6, 8))
    assert torch.equal(found, wanted)
    assert watch.ok, watch.problems
    assert [sample.call for sample in watch.samples] == [2, 3]
    assert str(watch).startswith("3 calls, 2 of them compared in ")
    assert watch.reports[0].reference == "float64"


def test_an_overflow_and_a_drift_are_found_by_op(served):
    model, _, x = served
    half = amprewrite.convert(model, "fp16", args=(x,))
    found = []
    with amprewrite.monitor(half, 1, original=model, on_problem=found.append) as watch:
        half(x)
        assert not found
        half(x * 1e5)  # beyond 65504 where the first layer reads it
    assert [sample.call for sample in found] == [2]
    (first, *_) = found[0].nonfinite
    assert (first.op, first.path) == ("to_dtype", "up")
    assert any("are not finite and are in the reference" in p for p in watch.problems)


def test_weights_that_move_away_are_a_drift(served):
    torch = pytest.importorskip("torch")
    model, converted, x = served
    with amprewrite.monitor(converted, 1, original=model) as watch:
        converted(x)
        with torch.no_grad():
            converted.down.bias.add_(1.0)
        with pytest.warns(AmpWarning, match="call 2 of a monitored model: output"):
            converted(x)
    assert watch.samples[1].drift > 20
    assert any(
        line.startswith("call 2: drift: relative error") for line in watch.problems
    )


def test_a_comparison_that_fails_is_a_problem_and_no_error(served):
    _, converted, x = served
    with amprewrite.monitor(converted, 1, original=lambda x: x) as watch:
        with pytest.warns(AmpWarning, match="not compared: UnsupportedError"):
            wanted = converted(x)
        assert wanted.shape == (6, 4)
    assert not watch.reports


def test_threads_are_served_at_the_same_time(served):
    torch = pytest.importorskip("torch")
    model, converted, x = served
    wanted, results = converted(x), []
    with amprewrite.monitor(converted, 3, original=model) as watch:
        threads = [
            threading.Thread(target=lambda: results.append(converted(x)))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert watch.calls == len(results) == 6
    assert len(watch.reports) == 2
    assert watch.ok, watch.problems
    assert all(torch.equal(y, wanted) for y in results)


def test_a_function_of_jax_is_called_by_its_monitor():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def model(p, x):
        return jnp.maximum(x @ p["up"], 0) @ p["down"]

    rng = np.random.default_rng(0)
    weights = {
        "up": jnp.asarray(rng.standard_normal((8, 16)), "float32"),
        "down": jnp.asarray(rng.standard_normal((16, 4)), "float32"),
    }
    x = jnp.asarray(rng.standard_normal((6, 8)), "float32")
    converted = amprewrite.convert(model, "fp16", args=(weights, x))
    served = jax.jit(converted)
    watch = amprewrite.monitor(served, 2)
    assert (watch(weights, x) == served(weights, x)).all()
    assert watch.ok, watch.problems
    jax.jit(watch)(weights, x)  # traced: not seen
    watch(weights, x)
    assert (watch.calls, len(watch.reports)) == (2, 1)
    with pytest.warns(AmpWarning, match="call 3 of a monitored model"):
        watch(weights, x * 1e5)
    assert watch.samples[1].nonfinite
    watch.close()
    watch(weights, x)
    assert watch.calls == 3


def test_mistakes_are_said():
    with pytest.raises(ArgumentError, match="every=0; want 1 or more"):
        amprewrite.monitor(len, 0)
    with pytest.raises(ArgumentError, match="keep=0; want 1 or more"):
        amprewrite.monitor(len, 1, keep=0)
    model = torch_model()
    with pytest.raises(UnsupportedError, match="this Model is not converted, so that"):
        amprewrite.monitor(model, 1)

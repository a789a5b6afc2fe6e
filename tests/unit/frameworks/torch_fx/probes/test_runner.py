import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode
from amprewrite.frameworks.torch_fx.probes.runner import (
    Runner,
    check_values,
    devices_of,
    full_float32,
)
from amprewrite.measure.runs import Call

X = torch.randn(4, 3)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x.add_(1)
        return {"y": nn.functional.dropout(self.linear(x), 0.5), "n": x.argmax(-1)}


def runner(*, gradients=False, args=(X,)):
    return Runner(Call(args, {}, gradients=gradients), [])


def test_a_run_changes_nothing():
    model, before, state = Counting(), X.clone(), torch.get_rng_state()
    run = runner().run(model, model)
    assert torch.equal(X, before)
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert list(run.outputs) == ["y"]
    assert list(run.others) == ["n"]
    assert run.dtypes == {"y": "float32", "n": "int64"}
    assert run.outputs["y"].dtype == "float64"


def test_an_output_that_is_a_buffer_is_copied():
    class Counter(Counting):
        def forward(self, x):
            super().forward(x)
            return self.calls

    model = Counter().double()
    run = runner(args=(X.double(),)).run(model, model)
    assert run.outputs["output"] == 1
    assert model.calls == 0


def test_every_run_draws_the_same_numbers_and_says_so():
    model, runs = Counting(), runner()
    first, second = (runs.run(model, model).outputs["y"] for _ in range(2))
    assert (first == second).all()
    assert runs.random
    still = runner()
    still.run(model.linear, model.linear)
    assert not still.random


def test_a_run_that_fails_changes_nothing():
    class Failing(Counting):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError

    model, state = Failing(), torch.get_rng_state()
    with pytest.raises(RuntimeError):
        runner().run(model, model)
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_arguments_are_cast_if_they_are_floats():
    args = (X, torch.arange(3), [X.bfloat16()], "text", None)
    runs = runner(args=args)
    (one, two, three, *rest), _ = runs.arguments({torch.float32: torch.float64})
    dtypes = (one.dtype, two.dtype, three[0].dtype)
    assert dtypes == (torch.float64, torch.int64, torch.bfloat16)
    assert rest == ["text", None]


def test_gradients_are_those_of_the_loss():
    linear = nn.Linear(3, 2).double()
    run = runner(gradients=True, args=(X.double(),)).run(linear, linear)
    target = torch.randn(
        (4, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    ((linear(X.double()) - target) ** 2).mean().backward()
    assert linear.weight.grad is not None
    found = torch.from_numpy(run.gradients["weight"])
    torch.testing.assert_close(found, linear.weight.grad)


def test_a_scale_is_taken_out_again():
    linear = nn.Linear(3, 2)
    one, many = runner(gradients=True), runner(gradients=True)
    many.scale = 1024.0
    found = [runs.run(linear, linear).gradients["weight"] for runs in (one, many)]
    assert (found[0] == found[1]).all()
    assert linear.weight.grad is None


def test_parameters_that_no_output_needs_have_zero_gradients():
    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.spare = nn.Parameter(torch.ones(2))

    model = Spare()
    assert not runner(gradients=True).run(model, model).gradients["spare"].any()


def test_devices_are_those_of_the_model_and_its_arguments():
    assert devices_of(Counting(), Call((X,), {})) == []


def test_products_are_full_float32_for_a_while_where_there_is_a_device():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with full_float32([]):
            assert torch.get_float32_matmul_precision() == "high"
        with full_float32([0]):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_has_no_values_is_named():
    check_values("it", nn.Linear(3, 3), Call((X, 2), {}))
    meta = nn.Linear(3, 3, device="meta")
    with pytest.raises(UnsupportedError, match=r"it runs .* weight has .* device meta"):
        check_values("it", meta, Call((X,), {}))
    with pytest.raises(UnsupportedError, match="an argument has no values"):
        check_values("it", nn.Linear(3, 3), Call((), {"x": X.to("meta")}))
    with fake_mode():
        fake = nn.Linear(3, 3)
    with pytest.raises(UnsupportedError, match="weight has no values: it is fake"):
        check_values("it", fake, Call((X,), {}))

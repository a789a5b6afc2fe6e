"""A converted module computes what a fresh conversion of its weights computes.

Whatever was done to it before: loaded, written to, switched, copied, pickled, moved.
"""

import copy
import pickle
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from tests.fuzzing import seeds
from tests.packing import change_all_layouts, pack_float32, packed_names
from tests.torch_programs import Program

WIDTH = 16
ROWS = st.integers(2, 6)
FACTORS = st.sampled_from([-2.0, 0.5, -1.0])
"""Powers of two, which are exact in each precision."""


def forward(m: Any, x: Any) -> Any:
    table = m.table.weight  # read low by a product, and full by what follows
    h = m.drop(m.norm(m.a(x))) * m.scale
    return h @ table.T + table.exp().sum(0)


def forward_images(m: Any, x: Any) -> Any:
    image = x.view(-1, 4, 2, 2)
    y = (m.d(m.c(image).relu()) + image).relu()
    return forward(m, x) + y.flatten(1)


def a_model(run: Any = forward, **more: Any) -> Any:
    parts = {
        "a": nn.Linear(WIDTH, WIDTH),
        "norm": nn.LayerNorm(WIDTH),
        "drop": nn.Dropout(0.0),
        "table": nn.Embedding(WIDTH, WIDTH),
        "scale": torch.full((WIDTH,), 0.5),
    }
    return Program(run, **parts, **more)


def with_convolutions() -> Any:
    convolutions = (nn.Conv2d(4, 4, 3, padding=1) for _ in "cd")
    return a_model(forward_images, **dict(zip("cd", convolutions, strict=True)))


def fresh(model: Any, policy: str, x: Any, *, training: bool) -> Any:
    """Return the output of ``model`` converted now."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        return amprewrite.convert(made, policy, args=(x,), training=training)(x)


class States(RuleBasedStateMachine):
    """A converted module, and the model that has its weights in full."""

    policy, tolerance = "bf16", 0.0
    make = staticmethod(a_model)

    @initialize(training=st.booleans(), lazy=st.booleans(), seed=st.integers(0, 2**16))
    def convert(self, *, training: bool, lazy: bool, seed: int) -> None:
        """Convert in eval mode, with args of any number of rows or without args."""
        self.start(training=training, lazy=lazy, seed=seed)

    def start(self, *, training: bool, lazy: bool, seed: int) -> None:
        """Convert a model."""
        self.stored = False
        torch.manual_seed(seed)
        self.training, self.lazy, self.rows = training, lazy, 3
        self.model = self.make().eval()
        rows = {0: torch.export.Dim("rows", min=2, max=8)}
        given = {} if lazy else {"args": (self.x(),), "dynamic_shapes": ((rows,),)}
        made = copy.deepcopy(self.model)
        self.converted = amprewrite.convert(
            made, self.policy, training=training, **given
        )

    def x(self) -> Any:
        """Return arguments that depend on the number of rows alone."""
        count = self.rows * WIDTH
        return torch.linspace(-1.0, 1.0, count).reshape(self.rows, WIDTH)

    @rule(rows=ROWS)
    def call_with_other_rows(self, rows: int) -> None:
        """Call with another number of rows from now on."""
        self.rows = rows

    @rule(assign=st.booleans(), seed=st.integers(0, 2**16))
    def load(self, *, assign: bool, seed: int) -> None:
        """Load other weights into both."""
        torch.manual_seed(seed)
        state = self.make().state_dict()
        self.model.load_state_dict(copy.deepcopy(state))
        self.converted.load_state_dict(copy.deepcopy(state), assign=assign)

    @rule(factor=FACTORS, name=st.sampled_from(["a.weight", "table.weight", "a.bias"]))
    def write(self, factor: float, name: str) -> None:
        """Write to a parameter of both."""
        with torch.no_grad():
            for module in (self.model, self.converted):
                module.get_parameter(name).mul_(factor)

    @rule(factor=FACTORS)
    def write_to_the_buffer(self, factor: float) -> None:
        """Write to the buffer of both."""
        for module in (self.model, self.converted):
            module.get_buffer("scale").mul_(factor)

    @rule(mode=st.booleans())
    def switch(self, *, mode: bool) -> None:
        """Switch the mode; what was converted for inference says that it cannot."""
        if not self.training and not self.lazy:
            with pytest.raises(UnsupportedError, match="was converted for inference"):
                self.converted.train()
            return
        self.converted.train(mode)
        self.model.train(mode)

    @rule()
    def copy(self) -> None:
        """Go on with a deep copy."""
        self.converted = copy.deepcopy(self.converted)

    @rule()
    def store(self) -> None:
        """Go on with what was pickled; a module with one mode has one afterwards."""
        if not self.lazy and not self.training:
            self.converted = pickle.loads(pickle.dumps(self.converted))
            self.stored = True

    @rule(format=st.sampled_from([torch.preserve_format, torch.contiguous_format]))
    def move(self, format: Any) -> None:  # noqa: A002  # torch's word
        """Move to where it is."""
        self.converted = self.converted.to("cpu", memory_format=format)
        with pytest.raises(UnsupportedError, match="cannot be cast"):
            self.converted.double()

    @invariant()
    def computes_what_a_fresh_conversion_does(self) -> None:
        """Compare with a conversion of the model that has the same weights."""
        x = self.x()
        with torch.no_grad():
            found = self.converted(x)
        expected = fresh(self.model, self.policy, x, training=self.training)
        allowed = self.tolerance
        torch.testing.assert_close(found, expected, rtol=allowed, atol=10 * allowed)


class PackedStates(States):
    """One with float32 weights that are packed: kernels may sum in another order."""

    policy, tolerance = "off", 1e-6
    make = staticmethod(with_convolutions)

    @initialize(seed=st.integers(0, 2**16))
    def convert(self, *, seed: int) -> None:
        """Convert for inference, with args, which packs the weight of the layer."""
        self.start(training=False, lazy=False, seed=seed)

    @rule(factor=FACTORS, name=st.sampled_from(["a", "c", "d"]))
    def write_to_a_packed_weight(self, factor: float, name: str) -> None:
        """Write to a row of a weight that the last call read packed."""
        with torch.no_grad():
            for module in (self.model, self.converted):
                module.get_submodule(name).weight[1].mul_(factor)

    @invariant()
    def packs(self) -> None:
        """See that the weights are packed, unless the program was pickled."""
        wanted = [] if self.stored else ["a.weight", "c.weight", "d.weight"]
        assert packed_names(self.converted) == wanted


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(1, 60))
@pytest.mark.parametrize("machine", [States, PackedStates])
def test_every_history_computes_what_a_fresh_conversion_does(
    machine: type[States], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if machine is PackedStates:
        pack_float32(monkeypatch)
        change_all_layouts(monkeypatch)
    torch.compiler.reset()
    random.seed(seed)
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=3,
            stateful_step_count=6,
            deadline=None,
            derandomize=False,
            database=None,
            suppress_health_check=health,
            print_blob=False,
        ),
    )

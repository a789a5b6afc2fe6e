"""Calls that name a dtype are replaced in a wide run, and counted in a plain one."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.comparison.compare import (
    Counted,
    named_dtypes,
    run_wide,
    wide_dtypes,
)
from amprewrite.frameworks.torch_fx.probes.runner import Runner
from amprewrite.measure.runs import Call

X = torch.randn(4, 8)
WIDE = {torch.float32: torch.float64}


class Named(nn.Linear):
    """Names float32 three times, and reads bits as a dtype once."""

    def forward(self, input: Any) -> Any:  # noqa: A002  # torch's own name
        y = super().forward(input).float().to(torch.float32)
        return y, y.float().view(y.dtype)


def test_the_calls_counted_are_those_that_are_replaced():
    model = Named(8, 8)
    call = Call((X,), {})
    runner = Runner(call, [])
    assert wide_dtypes(model, call, torch.float64) == WIDE
    run, notes = run_wide(model, runner, WIDE)
    assert set(run.dtypes.values()) == {"float64"}
    counted = Counted(WIDE)
    plain = runner.run(model, counted.around(model))
    assert notes == named_dtypes(counted.replaced, torch.float64)
    assert notes == [
        "the model names a float dtype in 3 calls; in the reference they are float64"
    ]
    assert plain.dtypes["0"] == "float32"
    assert named_dtypes(0, torch.float64) == []

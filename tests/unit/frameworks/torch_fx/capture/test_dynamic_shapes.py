"""Mistakes in dynamic_shapes= are told from models that export cannot capture."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.capture.one_graph import (
    refuse_mistake,
    refuse_unused,
)


@pytest.mark.parametrize(
    ("captured", "found"), [(True, "captured before"), (False, "needs args=")]
)
def test_a_wish_that_cannot_be_met_is_refused(captured, found) -> None:
    with pytest.raises(UnsupportedError, match=found):
        refuse_unused(captured=captured)


def test_an_axis_that_is_not_there_is_named() -> None:
    shapes = ({5: torch.export.Dim("n")},)
    failure = CaptureError("tuple index out of range")
    with pytest.raises(CaptureError, match=r"args\[0\] has 2 dimensions, none of .* 5"):
        refuse_mistake(nn.Linear(4, 4), (torch.ones(2, 4),), {}, shapes, failure)


def test_a_model_that_never_exports_is_no_mistake() -> None:
    class Branching(nn.Module):
        """Decides by the values of its input."""

        def forward(self, x):
            return x if x.sum() > 0 else -x

    args = (torch.ones(2, 4),)
    shapes = ({0: torch.export.Dim("n")},)
    with pytest.raises(CaptureError) as failed:
        export_model(Branching(), args, {}, shapes)
    failure = failed.value
    refuse_mistake(Branching(), args, {}, shapes, failure)

"""The check of predicted dtypes runs in every test and can fail."""

from typing import Any
from unittest import mock

import pytest

import amprewrite


def test_a_node_of_another_dtype_in_torch_is_found() -> None:
    torch = pytest.importorskip("torch")
    from amprewrite.frameworks.torch_fx.rewrite import write
    from tests.dtype_checks import dtypes_checked

    model, x = torch.nn.Linear(8, 8).eval(), torch.randn(4, 8)

    def forgotten(node: Any, dtypes: Any) -> None:
        """Predict what was traced, whatever the plan says."""

    amprewrite.convert(model, args=(x,))
    with (
        mock.patch.object(write, "retype", forgotten),
        dtypes_checked(),
        pytest.raises(AssertionError, match=r"predicts .*float32.* finds .*bfloat16"),
    ):
        amprewrite.convert(model, args=(x,))


def test_a_value_of_another_dtype_in_jax_is_found() -> None:
    jax = pytest.importorskip("jax")
    from amprewrite.frameworks.jaxpr.interpret import pipeline
    from tests.dtype_checks import dtypes_checked

    x = jax.numpy.ones((4, 8))

    def wrong(self: Any) -> dict[str, str]:
        return {name: "float64" for op in self.graph.ops for name in op.results}

    with (
        mock.patch.object(pipeline.Prepared, "stored", property(wrong)),
        dtypes_checked(),
        pytest.raises(AssertionError, match=r"predicts .*float64.* finds"),
    ):
        amprewrite.convert(lambda x: jax.numpy.tanh(x @ x.T))(x)

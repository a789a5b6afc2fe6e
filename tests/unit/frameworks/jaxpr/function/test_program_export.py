"""Exported files of JAX models run again, by themselves."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import export

import amprewrite
from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.jaxpr.function.program_export import (
    PLATFORMS,
    program_files,
    save_program,
)

X = jnp.linspace(-1.0, 1.0, 8).reshape(2, 4)
W = jnp.linspace(-2.0, 1.0, 12).reshape(4, 3)


def product(x: Any, *, w: Any) -> Any:
    return jax.nn.softmax(x @ w)


def saved(model: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    save_program(model, args, kwargs, path)
    found = export.deserialize(bytearray(path.read_bytes()))
    assert found.platforms == PLATFORMS
    assert "bf16" in str(found.mlir_module())
    return found.call(*args, **kwargs)


def test_a_function_runs_from_its_file(tmp_path: Any) -> None:
    converted = amprewrite.convert(product, args=(X,), kwargs={"w": W})
    found = saved(converted, tmp_path / "model.stablehlo", X, w=W)
    np.testing.assert_array_equal(found, jax.jit(converted)(X, w=W))


def test_weights_of_a_module_are_in_its_file(tmp_path: Any) -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    converted = amprewrite.convert(model, args=(X,))
    found = saved(converted, tmp_path / "model.stablehlo", X)
    np.testing.assert_array_equal(found, converted(X))


def test_variables_of_a_linen_module_are_arguments(tmp_path: Any) -> None:
    linen = pytest.importorskip("flax.linen")
    model = linen.Dense(3)
    variables = model.init(jax.random.key(0), X)
    converted = amprewrite.convert(model, args=(variables, X))
    found = saved(converted, tmp_path / "model.stablehlo", variables, X)
    np.testing.assert_array_equal(found, converted.apply(variables, X))


def test_other_files_are_refused(tmp_path: Any) -> None:
    assert list(program_files()) == [".stablehlo"]
    with pytest.raises(UnsupportedError, match=r"written as \.stablehlo, which jax"):
        save_program(product, (X,), {"w": W}, tmp_path / "model.pt2")


def test_what_jax_cannot_export_is_said(tmp_path: Any) -> None:
    def branches(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    path = tmp_path / "model.stablehlo"
    with pytest.raises(CaptureError, match=r"cannot be exported: .*save its plan"):
        save_program(branches, (X,), {}, path)
    assert not path.exists()

"""Converted torch models in the formats that others load; JAX for many platforms."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from tests.torch_programs import in_full, relative_error


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        heads = [y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (q, k, v)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def a_block() -> Any:
    torch.manual_seed(0)
    return Block().eval()


X = torch.linspace(-2.0, 2.0, 3 * 5 * 16).reshape(3, 5, 16)


@pytest.fixture(scope="module")
def converted() -> Any:
    batch = {0: torch.export.Dim("batch")}
    return amprewrite.convert(a_block(), args=(X,), dynamic_shapes=(batch,))


@pytest.fixture(scope="module")
def program(converted: Any) -> Any:
    shapes = torch.export.ShapesCollection()
    shapes[X] = {0: torch.export.Dim("batch")}
    return torch.export.export(converted, (X,), dynamic_shapes=shapes)


def test_an_exported_program_is_saved_and_loaded(
    converted: Any, program: Any, tmp_path: Any
) -> None:
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for rows in (3, 1, 7):
        x = X[:1].expand(rows, -1, -1).contiguous()
        assert torch.equal(in_full(loaded, x), in_full(converted, x))
    assert loaded.get_parameter("qkv.weight").dtype == torch.bfloat16


def test_an_exported_program_has_the_casts_of_the_plan(
    converted: Any, program: Any
) -> None:
    runtime = [cast for cast in converted.plan.casts if not cast.folded]
    found = [
        node
        for node in program.graph.nodes
        if "to.dtype" in str(node.target) or "_to_copy" in str(node.target)
    ]
    assert len(found) == len(runtime) > 0


def test_weights_go_through_safetensors(converted: Any, tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = converted.state_dict()
    safetensors.save_file(state, tmp_path / "model.safetensors")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert {name: t.dtype for name, t in loaded.items()} == {
        name: t.dtype for name, t in state.items()
    }
    plain, again = a_block(), amprewrite.convert(a_block(), args=(X,))
    for tensor in (*plain.parameters(), *again.parameters()):
        nn.init.zeros_(tensor)
    plain.load_state_dict(loaded)
    again.load_state_dict(loaded)
    assert torch.equal(in_full(again, X), in_full(converted, X))
    assert plain.qkv.weight.dtype == torch.float32
    exact = in_full(a_block().double(), X.double())
    assert relative_error(in_full(plain, X), exact) < 2.0**-7


def test_shared_weights_are_named_by_safetensors(tmp_path: Any) -> None:
    """As of any module: save_file refuses them, save_model stores one of each."""
    safetensors = pytest.importorskip("safetensors.torch")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    model[2].weight = model[0].weight
    x = torch.ones(2, 8)
    converted = amprewrite.convert(model, args=(x,))
    file = tmp_path / "model.safetensors"
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file(converted.state_dict(), file)
    safetensors.save_model(converted, str(file))
    before = in_full(converted, x)
    nn.init.zeros_(converted.get_parameter("0.weight"))
    safetensors.load_model(converted, str(file))
    assert torch.equal(in_full(converted, x), before)


def test_jax_exports_for_all_platforms_with_a_symbolic_batch() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import export

    def network(params: Any, x: Any) -> Any:
        hidden = jax.nn.gelu(x @ params["up"])
        return jax.nn.softmax(hidden @ params["down"])

    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "up": jax.random.normal(keys[0], (16, 32)) / 4,
        "down": jax.random.normal(keys[1], (32, 8)) / 5,
    }
    low = jax.jit(amprewrite.convert(network))
    (batch,) = export.symbolic_shape("batch")
    x = jax.ShapeDtypeStruct((batch, 16), jnp.float32)
    exported = export.export(low, platforms=("cpu", "cuda", "tpu"))(params, x)
    again = export.deserialize(exported.serialize(vjp_order=1))
    assert "bf16" in again.mlir_module()
    for rows in (1, 6):
        given = jax.random.normal(keys[2], (rows, 16))
        exact = network(params, given)
        found = again.call(params, given)
        error = jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact)
        assert 1e-5 < error < 2e-2
    grads = jax.grad(lambda p: again.call(p, given)[0, 0])(params)
    full = jax.grad(lambda p: network(p, given)[0, 0])(params)
    for name, grad in grads.items():
        assert grad.dtype == jnp.float32
        error = jnp.linalg.norm(grad - full[name]) / jnp.linalg.norm(full[name])
        assert error < 5e-2

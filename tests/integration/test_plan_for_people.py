"""The printed plan of a transformer: few lines, by compound and by layer."""

import pytest

import amprewrite


def test_a_torch_transformer_in_ten_lines():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, vocab_size=50)
    model = transformers.LlamaModel(config).eval()
    args = (torch.ones(1, 6, dtype=torch.long),)
    plan = amprewrite.inspect(model, args=args, kwargs={"use_cache": False})
    lines = str(plan).splitlines()
    assert len(lines) <= 14
    assert "7 x rms_norm: full (8 ops each)" in lines
    assert "3 x attention: bf16" in lines
    assert "3 x silu: bf16" in lines
    assert "3 x layers.*.mlp: 5 bf16, 1 cast" in lines
    assert {d.path for d in plan.select(compound="rms_norm#2")} == {
        "layers.0.post_attention_layernorm"
    }
    explained = plan.explain("layers.1.mlp").splitlines()
    assert explained[:2] == [
        "layers.1.mlp: 5 bf16, 1 cast at run time",
        "  silu: bf16",
    ]


def test_a_jax_transformer_in_ten_lines():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def norm(p, x):
        mean = x.mean(-1, keepdims=True)
        return p * (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def block(p, x):
        with jax.named_scope("attn"):
            h = norm(p["scale"], x)
            scores = (h @ p["q"]) @ (h @ p["k"]).T
            x = x + jax.nn.softmax(scores) @ (h @ p["v"])
        with jax.named_scope("mlp"):
            return x + jax.nn.gelu(norm(p["scale"], x) @ p["up"]) @ p["down"]

    def model(layers, x):
        for number, layer in enumerate(layers):
            with jax.named_scope(f"h.{number}"):
                x = block(layer, x)
        return -jax.nn.log_softmax(x).mean()

    square = jnp.eye(8)
    layer = dict.fromkeys(("q", "k", "v", "up", "down"), square)
    layers = [{**layer, "scale": jnp.ones(8)} for _ in range(4)]
    lines = str(amprewrite.inspect(model, args=(layers, jnp.ones((4, 8))))).splitlines()
    assert len(lines) <= 12
    for name in ("softmax", "gelu", "layer_norm"):
        count = 8 if name == "layer_norm" else 4
        assert any(line.startswith(f"{count} x {name}: ") for line in lines), name
    assert any(line.startswith("log_softmax: full") for line in lines)
    assert any(line.startswith("4 x h.*.attn: ") for line in lines)

import pytest

from amprewrite.errors import PolicyError
from amprewrite.simulation import simulate


def test_mistakes():
    with pytest.raises(PolicyError, match=r"format 'e4m4'; want two of e4m3, e5m2"):
        simulate(len, "e4m4/e5m2")
    with pytest.raises(PolicyError, match="scaling 'delayed'; want none or current"):
        simulate(len, scaling="delayed")  # pyright: ignore[reportArgumentType]


def test_gpt2_of_transformers():
    """Its projections are ``addmm``, which rewriting by layer class overlooks."""
    torch, transformers = (
        pytest.importorskip("torch"),
        pytest.importorskip("transformers"),
    )
    import amprewrite

    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        vocab_size=64,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(64, (2, 16))
    call = (ids,), {"use_cache": False}
    found = amprewrite.simulate(model, args=call[0], kwargs=call[1])
    names = [d.canonical for d in found.plan.quantised]
    assert names.count("addmm") == 8
    assert names.count("scaled_dot_product_attention") == 2
    assert names.count("linear") == 1
    with torch.no_grad():
        wanted, made = (
            model(*call[0], **call[1]).logits,
            found(*call[0], **call[1]).logits,
        )
    assert 0.01 < (made - wanted).norm() / wanted.norm() < 0.1
    unit = amprewrite.inspect(model, "unit-fp8", args=call[0], kwargs=call[1])
    kept = {d.path for d in unit.decisions if d.canonical == "addmm"}
    kept -= {d.path for d in unit.quantised}
    assert sorted(kept) == [
        *(f"transformer.h.0.{p}.c_proj" for p in ("attn", "mlp")),
        *(f"transformer.h.1.{p}.c_proj" for p in ("attn", "mlp")),
    ]

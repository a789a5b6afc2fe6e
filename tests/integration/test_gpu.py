"""What only a CUDA device can show: its kernels, its autocast, its compiler."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import amprewrite
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from benchmarks import zoo
from tests.torch_programs import Program, floats, relative_error

pytestmark = pytest.mark.gpu

MODELS = sorted(set(zoo.ZOO) - zoo.PRETRAINED)
SINGLE = frozenset(("mixtral",))
"""Models with an operator that has no float64 kernel: float32 is their reference."""


def on_device(name: str) -> Any:
    model, args, kwargs = zoo.build(name, zoo.TINY, 2, 16)

    def move(x: Any) -> Any:
        return x.cuda() if isinstance(x, torch.Tensor) else x

    return model.cuda(), *pytree.tree_map(move, (args, kwargs))


def reference(name: str, model: Any, args: Any, kwargs: Any) -> Any:
    if name in SINGLE:
        return model(*args, **kwargs)

    def widen(x: Any) -> Any:
        wide = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.double() if wide else x

    args, kwargs = pytree.tree_map(widen, (args, kwargs))
    return copy.deepcopy(model).double()(*args, **kwargs)


@pytest.mark.parametrize("policy", ["bf16", "fp16", "autocast-cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_error_is_at_most_that_of_autocast(name: str, policy: str) -> None:
    model, args, kwargs = on_device(name)
    low = torch.float16 if policy == "fp16" else torch.bfloat16
    converted = amprewrite.convert(model, policy, args=args, kwargs=kwargs)
    with torch.no_grad():
        expected = reference(name, model, args, kwargs)
        plain = model(*args, **kwargs)
        out = converted(*args, **kwargs)
        with torch.autocast("cuda", low):
            theirs = model(*args, **kwargs)
    assert [x.dtype for x in floats(out)] == [x.dtype for x in floats(plain)]
    ours = relative_error(out, expected)
    assert 0 < ours <= 1.1 * relative_error(theirs, expected)
    assert not [c for c in converted.casts if c.is_weight and not c.folded]
    assert not converted.plan.warnings


def test_dropout_draws_the_same_mask_on_the_device() -> None:
    model = Program(
        lambda m, x: torch.nn.functional.dropout(m.a(x), 0.5, True),
        a=torch.nn.Linear(64, 64),
    ).cuda()
    x = torch.randn(256, 64, device="cuda")
    converted = amprewrite.convert(model.train(), args=(x,))
    torch.manual_seed(3)
    ours = converted(x)
    torch.manual_seed(3)
    assert torch.equal(ours == 0, model(x) == 0)


@pytest.mark.parametrize("name", ["bert", "llama", "resnet"])
def test_the_compiled_module_agrees_with_the_eager_one(name: str) -> None:
    model, args, kwargs = on_device(name)
    eager = amprewrite.convert(model, args=args, kwargs=kwargs)
    compiled = amprewrite.convert(model, args=args, kwargs=kwargs, compile=True)
    with torch.no_grad():
        expected = reference(name, model, args, kwargs)
        ours = relative_error(compiled(*args, **kwargs), expected)
        assert ours <= 1.5 * relative_error(eager(*args, **kwargs), expected)


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_training_steps_follow_autocast(name: str) -> None:
    model, args, kwargs = on_device(name)
    model.train()
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    converted = amprewrite.convert(ours, args=args, kwargs=kwargs)

    def loss(output: Any) -> Any:
        return sum(x.float().square().mean() for x in floats(output))

    pairs = []
    for program in (converted, theirs):
        optimizer = torch.optim.AdamW(program.parameters(), 1e-4)
        losses = []
        for step in range(5):
            torch.manual_seed(step)
            with torch.autocast("cuda", torch.bfloat16, enabled=program is theirs):
                value = loss(program(*args, **kwargs))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
        pairs.append(losses)
    assert all(abs(a - b) <= 0.01 * abs(b) for a, b in zip(*pairs, strict=True))
    assert {p.grad.dtype for p in ours.parameters() if p.grad is not None} == {
        torch.float32
    }


@pytest.mark.parametrize("kernel", ["auto", "scaled_mm"])
def test_products_of_8_bits_are_those_of_the_emulation(kernel: str, tmp_path: Any):
    """Sums of the kernel have fewer bits than float32: 14 on Hopper."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the device has no products of 8 bits")
    path = tmp_path / "real.toml"
    path.write_text(f'extends = "fp8"\n[contract]\nkernel = "{kernel}"\n')
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 77).cuda()  # no multiples of 16
    x = torch.randn(33, 100, device="cuda")
    found: list[Any] = []
    for policy in (str(path), "fp8"):
        converted = amprewrite.convert(model, policy, args=(x,))
        model.zero_grad()
        y = converted(x)
        (y**2).sum().backward()
        found.append((y.detach(), model.weight.grad.clone(), model.bias.grad.clone()))
    for real, emulated in zip(*found, strict=True):
        assert 0 < relative_error(real, emulated) < 1e-2

"""Mistakes that raise what the page of troubleshooting quotes, a function for each."""

import copy
import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import torch
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from torch import nn

import amprewrite
from amprewrite import unit_scaling
from amprewrite.dtypes import promote_types
from amprewrite.factories import load_factory
from amprewrite.frameworks import least
from amprewrite.frameworks.torch_fx.compat import watchers
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import OfMatrix
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import PackedLayer
from amprewrite.ir import parse_graph
from amprewrite.ops.table import parse_table
from amprewrite.training.jax import DynamicLossScale, StaticLossScale, value_and_grad
from amprewrite.training.torch import GradScaler
from amprewrite.unit_scaling.jax import scale_bwd
from amprewrite.verify import Report

x = torch.ones(3, 4)
args = (x,)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()


class Floats(nn.Module):
    def forward(self, z):
        return z.float()


class Softmax(nn.Module):
    def forward(self, z):
        return torch.softmax(z, -1)


def args_no_tuple():
    amprewrite.convert(model(), args=x)  # pyright: ignore[reportArgumentType]


def old_framework():
    with mock.patch.object(jax, "__version__", "0.10.0"):
        least.require("jax")


def unnoticed_checkpoints():
    empty = nullcontext()
    with mock.patch.object(watchers, "noting_saved_tensors", return_value=empty):
        watchers.failed.__wrapped__("2.99.0")


def overrides_no_list():
    rule = {"path": "2", "class": "deny"}
    amprewrite.convert(model(), args=args, overrides=rule)  # pyright: ignore[reportArgumentType]


def keywords_as_args():
    call = {"input": x}
    amprewrite.verify(model(), model(), call)  # pyright: ignore[reportArgumentType]


def unknown_policy():
    amprewrite.convert(model(), "bf61", args=args)


def arguments_as_policy():
    amprewrite.convert(model(), args)  # pyright: ignore[reportArgumentType]


def policy_file():
    Path("mine.toml").write_text(
        'extends = "bf16"\n[ops]\ngelu = "denied"\n'
        '[[rules]]\npaths = "head"\nclass = "deny"\n'
    )
    amprewrite.load_policy("mine.toml")


def misspelt_op():
    rule = {"op": "layernorm", "class": "deny"}
    amprewrite.convert(model(), args=args, overrides=[rule])


def traced_branch():
    amprewrite.convert(lambda y: y if y.sum() > 0 else -y, args=(jnp.ones(3),))


def wrong_call():
    amprewrite.convert(model(), args=(x, x))


def not_captured():
    assert amprewrite.convert(model()).plan


def other_program():
    plan = amprewrite.inspect(model(), args=args)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    amprewrite.convert(other, args=args, plan=plan)


def no_plan_file():
    amprewrite.Plan.load("none.json")


def other_policy():
    plan = amprewrite.inspect(model(), args=args)
    amprewrite.convert(model(), "fp16", args=args, plan=plan)


def beyond_rtol():
    converted = amprewrite.convert(model(), args=args)
    amprewrite.verify(model(), converted, args, rtol=1e-6)


def verified():
    converted = amprewrite.convert(model(), args=args)
    return amprewrite.verify(model(), converted, args)


def fix_of_a_loaded_report():
    Report.from_json(verified().to_json()).fix(1e-3)


def fix_without_a_target():
    verified().fix(0.0)


def zero_tolerance():
    amprewrite.convert(model(), args=args, tolerance=0.0)


def tolerance_out_of_reach():
    amprewrite.convert(model(), args=args, tolerance=1e-30)


def unknown_output():
    amprewrite.convert(model(), args=args, tolerance={"logits": 1e-3})


def no_common_dtype():
    promote_types("float8_e4m3fn", "bfloat16")


def complex_order():
    z = torch.ones(3, dtype=torch.complex64)
    amprewrite.convert(Softmax().eval(), args=(z,))


def complex_truncation():
    z = torch.ones(3, dtype=torch.complex64)
    amprewrite.convert(Floats().eval(), args=(z,))


def broken_graph():
    parse_graph("%x: f32[2] input\nexp(%x)\n")


def broken_op_table():
    parse_table(
        '[groups]\npointwise = "one by one"\n[ops]\nmul = { groups = 1 }\n', "ops"
    )


def other_optimizer():
    fast = amprewrite.convert(model().train(), "fp16", args=args)
    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    scaler = GradScaler("cpu", model=fast)
    scaler.scale(fast(x).sum()).backward()
    scaler.step(other)


def scale_at_minimum():
    weight = nn.Parameter(torch.ones(2))
    scaler = GradScaler("cpu", init_scale=2.0**-14)
    scaler.scale(weight.sum() * torch.inf).backward()
    scaler.step(torch.optim.SGD([weight], lr=0.1))
    scaler.update()


def jax_scale_at_minimum():
    def loss(params):
        return (params["w"] @ params["w"] * jnp.inf).sum()

    lowest = DynamicLossScale(1.0)
    value_and_grad(loss, "fp16", loss_scale=lowest)({"w": jnp.ones((2, 2))})


def scales_apart():
    def step(w):
        scale = DynamicLossScale(2.0)
        return value_and_grad(jnp.sum, "fp16", loss_scale=scale)(w)[3]

    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    axes: Any = {"in_specs": P("data"), "out_specs": P("data")}
    jax.shard_map(step, mesh=mesh, **axes)(jnp.ones(2))


def no_target():
    load_factory("model.py:build")


def half():
    amprewrite.convert(model(), args=args).half()


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(4, 4, bias=False)

    def forward(self, z, *, square=False):
        return self.table.weight.exp() if square else self.table(z)


def read_in_full_later():
    amprewrite.convert(Table().eval(), args=args)(x, square=True)


def shallow_copy():
    copy.copy(amprewrite.convert(model(), args=args))


def scripted():
    torch.jit.script(amprewrite.convert(model(), args=args))


def traced_symbolically():
    torch.fx.symbolic_trace(amprewrite.convert(model(), args=args))


def trained_later():
    amprewrite.convert(model(), args=args).train()


def parametrized_later():
    made = amprewrite.convert(model(), args=args)
    nn.utils.parametrizations.weight_norm(made[0])
    made(x)


def no_args():
    amprewrite.inspect(model())


def no_model():
    amprewrite.convert("model.pt")


def unknown_target():
    amprewrite.convert(model(), args=args, target="fast")


def unknown_placement():
    amprewrite.convert(model(), args=args, placement="optmal")


def no_plan():
    amprewrite.plan_of(model())


def unused_rule():
    rule = {"path": "haed", "class": "deny"}
    amprewrite.convert(model(), args=args, overrides=[rule])


class OverruledGuard(nn.Module):
    def forward(self, x):
        return torch.log(1 - (x @ x).clamp(max=1 - 1e-3)) + torch.sin(x)


def overruled_guard():
    rules = [{"op": name, "class": "allow"} for name in ("clamp", "sin")]
    for rule in rules:
        square = (torch.ones(4, 4),)
        amprewrite.convert(OverruledGuard().eval(), args=square, overrides=[rule])


def nothing_lowered():
    amprewrite.convert(nn.Sequential(nn.LayerNorm(4)).eval(), args=args)


def float16_on_a_cpu():
    amprewrite.convert(model(), "fp16", args=args)


def beyond_float16():
    amprewrite.convert(model(), "fp16", args=(x * 1e7,))


class Phases(nn.Module):
    def forward(self, z):
        return torch.sin(z @ torch.full((4, 4), 33.3))


def rounded_phases():
    amprewrite.convert(Phases().eval(), "autocast-cpu", args=args)


def residual_in_low():
    a = jnp.eye(4) + 0.1

    def solve(b):
        def residual(y):
            return b - a @ y

        def goes_on(y):
            return jnp.linalg.norm(residual(y)) > 1e-4

        return jax.lax.while_loop(goes_on, lambda y: y + 0.5 * residual(y), b)

    amprewrite.convert(solve, "autocast-cpu", args=(jnp.full(4, 1.1),))


def scale_not_needed():
    value_and_grad(lambda w: (w @ w).sum(), "bf16", loss_scale=StaticLossScale(2.0))(
        jnp.ones((2, 2))
    )


def scale_beside_unit_scaling():
    def loss(w):
        return (scale_bwd(w, 2.0) @ w).sum()

    scale = StaticLossScale(2.0)
    value_and_grad(loss, "fp16", loss_scale=scale)(jnp.ones((2, 2)))


def edited_plan():
    plan = amprewrite.inspect(model(), args=args)
    data = plan.to_json()
    data["decisions"][0]["op_class"] = "allows"
    amprewrite.Plan.from_json(data)


def unknown_rule():
    unit_scaling.rule("gellu")


class Unscalable(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.linear, self.made, self.seen = nn.Linear(4, 4), made, None

    def forward(self, z):
        return self.made(self, self.linear(z))


def unscaled(made):
    return amprewrite.unit_scale(Unscalable(made), args)


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        del ctx
        return z.clone()

    @staticmethod
    def backward(ctx, *grad_outputs):
        del ctx
        return -grad_outputs[0]


def unknown_constraint():
    amprewrite.unit_scale(model(), args, constraint="to_outputs")


def op_without_a_rule():
    unscaled(lambda _, z: z * z.max().item())


def backward_that_is_lost():
    unscaled(lambda _, z: Negated.apply(z))


def transforms_inside():
    unscaled(lambda _, z: torch.vmap(torch.tanh)(z))


def complex_inside():
    unscaled(lambda _, z: torch.fft.fft(z).abs())


def write_inside():
    def fill(_, z):
        made = torch.zeros(3, 4)
        made[:, :2] = z[:, :2]
        return made

    unscaled(fill)


def attribute_written():
    def note(model, z):
        model.seen = z.detach()
        return z

    unscaled(note)


def factors_already():
    unscaled(lambda _, z: unit_scaling.scale_fwd(z, 2.0))


def loss_scale_beside():
    scaled = unscaled(lambda _, z: z.square().mean())
    (1024 * scaled(*args)).backward()


def weight_not_packed():
    weight = torch.zeros(3072, 768, dtype=torch.bfloat16)
    layer = PackedLayer(nn.functional.linear, OfMatrix(), (1, 768))
    failure = RuntimeError("not enough memory: you tried to allocate 4718592 bytes.")
    with mock.patch.object(kernels, "packed_matrix", side_effect=failure):
        layer(torch.zeros(1, 768, dtype=torch.bfloat16), weight, None)


MISTAKES = {
    name: found
    for name, found in globals().items()
    if inspect.isfunction(found)
    and found.__module__ == __name__
    and name not in ("model", "unscaled", "verified")
}
"""The functions by name."""

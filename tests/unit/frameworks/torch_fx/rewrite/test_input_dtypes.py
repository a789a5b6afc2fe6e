"""Dtypes of arguments that the model itself refuses are found at conversion."""

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812

import amprewrite
from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.rewrite.read import refuse_unequal
from amprewrite.ir import parse_graph
from tests.torch_programs import Program

WEIGHT = torch.ones(16, 16)

MODELS: dict[str, Any] = {
    "linear": nn.Linear(16, 4),
    "conv": nn.Conv1d(4, 4, 3),
    "layer_norm": nn.LayerNorm(16),
    "group_norm": nn.GroupNorm(2, 4),
    "batch_norm": nn.BatchNorm1d(4),
    "sequence": nn.Sequential(nn.GELU(), nn.Linear(16, 16), nn.LayerNorm(16)),
    "attention": nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    "prelu": nn.PReLU(),
    "softmax": nn.Softmax(-1),
    "matmul": Program(lambda s, x: x @ s.w, w=nn.Parameter(WEIGHT)),
    "add": Program(lambda s, x: x + s.w, w=nn.Parameter(torch.ones(16))),
    "mse": Program(lambda s, x: F.mse_loss(x, s.w), w=nn.Parameter(torch.ones(16))),
    "lerp": Program(lambda s, x: x.lerp(s.w, 0.5), w=nn.Parameter(torch.ones(16))),
    "row": Program(
        lambda s, x: s.w.index_put((torch.tensor([0]),), x[0, :1]),
        w=nn.Parameter(WEIGHT),
    ),
}
DTYPES = ("float16", "bfloat16", "float32", "float64", "int64", "bool")


def runs(model: Any, x: Any) -> bool:
    try:
        model(x)
    except Exception:  # noqa: BLE001  # torch raises many kinds
        return False
    return True


@pytest.mark.filterwarnings("ignore")  # mse_loss broadcasts; nothing may be lowered
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_converted_exactly_if_it_runs(name: str, dtype: str) -> None:
    model, x = MODELS[name].eval(), torch.ones(2, 4, 16).to(getattr(torch, dtype))
    if not runs(model, x):
        with pytest.raises(CaptureError, match="fails on these arguments"):
            amprewrite.convert(model, args=(x,))
        return
    converted = amprewrite.convert(model, args=(x,))
    assert converted(x).dtype == model(x).dtype


@pytest.mark.parametrize("policy", ["bf16", "off"])
def test_the_message_names_the_argument_and_what_to_do(policy: str) -> None:
    model = nn.Sequential(nn.Linear(16, 4)).eval()
    x = torch.ones(2, 16, dtype=torch.float64)
    with pytest.raises(CaptureError) as caught:
        amprewrite.convert(model, policy, args=(x,))
    message = str(caught.value)
    for part in (
        (
            "Sequential fails on these arguments: argument input_1 is float64, the "
            "model's parameters are float32; at "
        ),
        ": 0: linear: ",
        "want arguments of float32: cast them, x.to(torch.float32), or ",
        'policy="promote"',
    ):
        assert part in message
    with pytest.raises(CaptureError, match="argument input_1 is float64"):
        amprewrite.inspect(model, policy, args=(x,))
    converted = amprewrite.convert(model, "promote", args=(x,))
    assert converted(x).dtype == torch.float64


def test_the_argument_is_found_behind_other_ops() -> None:
    model = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(16, 4)).eval()
    x = torch.ones(2, 4, 4, dtype=torch.float16)
    with pytest.raises(CaptureError, match="argument input_1 is float16"):
        amprewrite.convert(model, args=(x,))


def test_arguments_without_values_are_judged_by_the_rules() -> None:
    model = nn.Linear(16, 4, device="meta").eval()
    x = torch.ones(2, 16, device="meta", dtype=torch.float64)
    assert runs(model, x)
    with pytest.raises(CaptureError, match="torch refuses operands of these dtypes"):
        amprewrite.convert(model, args=(x,))


UNEQUAL = """
%x: f64[2,16] input
%w: f32[4,16] parameter
linear = linear(%x, %w) -> %y: f32[2,4]
return %y
"""


def test_a_model_that_runs_is_not_refused() -> None:
    calls = itertools.count()  # which is not put back, as a list would be

    class Counted(nn.Linear):
        def forward(self, input: Any) -> Any:  # noqa: A002  # as torch names it
            next(calls)
            return super().forward(input)

    model, x = Counted(16, 4), torch.ones(2, 16)
    refuse_unequal(parse_graph(UNEQUAL), model, (x,), {})
    assert next(calls) == 1
    refuse_unequal(parse_graph(UNEQUAL.replace("f64", "f32")), model, (x,), {})
    assert next(calls) == 2  # nothing to find out: it is not run

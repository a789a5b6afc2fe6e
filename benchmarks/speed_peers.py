"""Models in mixed precision by other compilers, where these are installed.

lightning-thunder applies autocast to a trace, and runs it. ModelOpt AutoCast rewrites
an ONNX file, which onnxruntime runs; on a CPU in fp16, since onnxruntime has no bf16
kernels for CPUs. Neither is a dependency:

    pip install lightning-thunder "nvidia-modelopt[onnx]"
"""

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.aten.ops import named_tensors

Case = tuple[Any, Any, Any]
Run = Callable[[], object]


def thunder(case: Case, _device: str) -> Run:
    """Return a call of a model that thunder runs with its transform for autocast.

    Raises:
        ImportError: thunder is not installed.
    """
    model, args, kwargs = case
    autocast = import_module("thunder.transforms.autocast").AutocastTransform
    transforms = [autocast(dtype=torch.bfloat16)]
    run = import_module("thunder").jit(model, transforms=transforms)
    return lambda: run(*args, **kwargs)


class _FirstOutput(nn.Module):
    """A model with its first float output alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        leaves = dict(named_tensors(self.model(*args, **kwargs))).values()
        return next(leaf for leaf in leaves if leaf.is_floating_point())


def modelopt(case: Case, device: str) -> Run:
    """Return a call of a model that onnxruntime runs, rewritten by ModelOpt AutoCast.

    Raises:
        ImportError: ModelOpt, or a package that it needs, is not installed.
    """
    autocast = import_module("modelopt.onnx.autocast").convert_to_mixed_precision
    runtime: Any = import_module("onnxruntime")
    model, args, kwargs = case
    low, provider = "fp16", "CPUExecutionProvider"
    if device == "cuda":
        low, provider = "bf16", "CUDAExecutionProvider"
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        exported = _FirstOutput(model)
        torch.onnx.export(exported, args, file, kwargs=kwargs, external_data=False)
        rewritten = autocast(str(file), low_precision_type=low, keep_io_types=True)
    session = runtime.InferenceSession(
        rewritten.SerializeToString(), options, providers=[provider]
    )
    given = [value.numpy(force=True) for value in (*args, *kwargs.values())]
    names = [each.name for each in session.get_inputs()]
    fed = dict(zip(names, given, strict=True))
    return lambda: torch.from_numpy(session.run(None, fed)[0])


PEERS: dict[str, Callable[[Case, str], Run]] = {
    "thunder": thunder,
    "modelopt": modelopt,
}
"""Other compilers by name."""


def available(
    names: list[str], case: Case, device: str
) -> tuple[dict[str, Run], dict[str, str]]:
    """Return calls of the forms of a model by other compilers, and why some are not.

    Args:
        names: Names of the compilers.
        case: The model, its arguments and keyword arguments.
        device: Type of the device.
    """
    runs: dict[str, Run] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            run = PEERS[name](case, device)
            with torch.no_grad():
                run()
        except Exception as error:  # noqa: BLE001  # whatever another compiler raises
            reason = str(error).strip().split("\n")[0][:200]
            left_out[name] = f"{type(error).__name__}: {reason}"
        else:
            runs[f"{name}, eager"] = run
    return runs, left_out

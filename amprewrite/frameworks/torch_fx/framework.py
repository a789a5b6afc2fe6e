"""PyTorch as the core uses it: see :class:`amprewrite.frameworks.base.Framework`."""

from amprewrite.frameworks.torch_fx.compare import measure, walk
from amprewrite.frameworks.torch_fx.compiled_plans import plan_of
from amprewrite.frameworks.torch_fx.convert import convert, inspect
from amprewrite.frameworks.torch_fx.devices import samples
from amprewrite.frameworks.torch_fx.module.original import original
from amprewrite.frameworks.torch_fx.module.program_export import (
    graph_text,
    program_files,
    save_program,
)
from amprewrite.frameworks.torch_fx.probes.calibrate import (
    default_target,
    device_of,
    kernels,
)
from amprewrite.frameworks.torch_fx.probes.calibrate import measure as calibrate
from amprewrite.frameworks.torch_fx.probes.calibrate import named as device_named

__all__ = [
    "calibrate",
    "convert",
    "default_target",
    "device_named",
    "device_of",
    "graph_text",
    "inspect",
    "kernels",
    "measure",
    "original",
    "plan_of",
    "program_files",
    "samples",
    "save_program",
    "walk",
]

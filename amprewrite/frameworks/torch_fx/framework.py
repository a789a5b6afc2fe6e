"""PyTorch as the core uses it: see :class:`amprewrite.frameworks.base.Framework`."""

from amprewrite.frameworks.torch_fx.calibrate import device_of, kernels
from amprewrite.frameworks.torch_fx.calibrate import measure as calibrate
from amprewrite.frameworks.torch_fx.calibrate import named as device_named
from amprewrite.frameworks.torch_fx.compare import measure, walk
from amprewrite.frameworks.torch_fx.convert import convert, inspect, original
from amprewrite.frameworks.torch_fx.export import graph_text, save_program

__all__ = [
    "calibrate",
    "convert",
    "device_named",
    "device_of",
    "graph_text",
    "inspect",
    "kernels",
    "measure",
    "original",
    "save_program",
    "walk",
]

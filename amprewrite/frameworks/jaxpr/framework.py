"""JAX as the core uses it: see :class:`amprewrite.frameworks.base.Framework`."""

from amprewrite.frameworks.jaxpr.compare import measure, walk
from amprewrite.frameworks.jaxpr.convert import convert, inspect, original, plan_of
from amprewrite.frameworks.jaxpr.devices import samples
from amprewrite.frameworks.jaxpr.function.program_export import (
    program_files,
    save_program,
)
from amprewrite.frameworks.jaxpr.function.program_text import graph_text
from amprewrite.frameworks.jaxpr.probes.calibrate import (
    default_target,
    device_of,
    kernels,
)
from amprewrite.frameworks.jaxpr.probes.calibrate import measure as calibrate
from amprewrite.frameworks.jaxpr.probes.calibrate import named as device_named

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

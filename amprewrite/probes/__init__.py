"""Public functions that look into runs of a model; their imports run when called."""

from amprewrite.probes.exponents import histogram
from amprewrite.probes.monitoring import Monitor, monitor
from amprewrite.probes.samples import Sample

__all__ = ["Monitor", "Sample", "histogram", "monitor"]

"""PyTorch: ATen-level torch.fx graphs, before decomposition."""

from amprewrite.frameworks.least import require

require("torch")

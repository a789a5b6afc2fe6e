"""PyTorch: ATen-level torch.fx graphs, before decomposition."""

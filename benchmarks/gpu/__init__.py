"""Measurements on a CUDA device: one step a module, run by ``benchmarks/gpu.sh``."""

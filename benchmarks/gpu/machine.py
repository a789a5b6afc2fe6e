"""Facts about the device and the libraries, for the head of every table."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("torch", "triton", "transformers", "jax", "jaxlib", "equinox", "numpy")
"""Packages whose versions matter."""


def facts() -> dict[str, Any]:
    """Return the device's name, memory, driver and capability, and all versions."""
    found: dict[str, Any] = {"python": platform.python_version()}
    found.update({name: _version(name) for name in PACKAGES})
    found["gpu"] = _query("name,memory.total,driver_version") or "none"
    try:
        import torch  # noqa: PLC0415  # a machine may have JAX alone
    except ImportError:
        return found
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _query(fields: str) -> str:
    """Return what the driver says of the first device; empty without a driver."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else ""

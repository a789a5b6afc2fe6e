"""Which dtype a low contraction should hand over, by backend.

XLA for CPUs computes bfloat16 x bfloat16 -> float32 in about half of float32's time,
and -> bfloat16 in about all of it, because it converts the operands first (1024 x 1024
x 1024 on a Zen 5 core with avx512_bf16: 0.51 and 1.09). Rounding the accumulator
afterwards is therefore faster there. GPUs and TPUs round inside the kernel.
"""

# JAX's own types are partial: what its functions give is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
import json
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

from amprewrite.errors import AmpWarning, UnsupportedError
from amprewrite.frameworks.jaxpr.untyped import jax, jnp, lax

DEFAULTS = {"cpu": True, "gpu": False, "cuda": False, "rocm": False, "tpu": False}
"""Whether a backend hands over accumulators where nothing was measured."""

SIDE = 1024
"""Rows and columns of the matrices that are timed."""

ROUNDS = 15
"""Times that each is timed, interleaved."""


def cache_file() -> Path:
    """Return where measurements are kept: ``$XDG_CACHE_HOME/amprewrite``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "amprewrite" / "contractions.json"


@functools.cache
def emits_accumulators(backend: str) -> bool:
    """Return whether low contractions on ``backend`` hand over accumulators."""
    measured = _measured().get(backend, {})
    return bool(measured.get("emits_accumulators", DEFAULTS.get(backend, False)))


def _measured() -> dict[str, dict[str, Any]]:
    """Return what was measured here, by backend.

    A file that cannot be used is left out with a warning: a cache must not stop a
    conversion, whose result is right in either way.
    """
    file = cache_file()
    try:
        found = json.loads(file.read_text("utf-8"))
        return {backend: dict(entry) for backend, entry in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).split("\n")[0]
        warnings.warn(
            f"{file}: is not what `amprewrite calibrate` writes ({reason}); defaults "
            f"are used instead; run `amprewrite calibrate` to measure again",
            AmpWarning,
            stacklevel=2,
        )
        return {}


def calibrate() -> dict[str, Any]:
    """Time contractions on the default backend, keep and return the result.

    Ratios are medians over float32's median, interleaved in one process.
    """
    backend = jax.default_backend()
    low = jnp.ones((SIDE, SIDE), jnp.bfloat16)
    runs = {
        "float32": (jnp.ones((SIDE, SIDE), jnp.float32), jnp.float32),
        "to float32": (low, jnp.float32),
        "to bfloat16": (low, jnp.bfloat16),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    compiled = {name: _matmul(dtype) for name, (_, dtype) in runs.items()}
    for turn in range(ROUNDS + 1):
        for name, (operand, _) in runs.items():
            start = time.perf_counter()
            compiled[name](operand).block_until_ready()
            if turn:  # the first compiles
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    ratios = {name: found / medians["float32"] for name, found in medians.items()}
    chosen = ratios["to float32"] < ratios["to bfloat16"]
    entry = {"emits_accumulators": chosen, "ratios": ratios}
    file = cache_file()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmpWarning)  # it is written anew
        known = _measured()
    _write(file, json.dumps({**known, backend: entry}, indent=1) + "\n")
    emits_accumulators.cache_clear()
    return {"backend": backend, "file": str(file), **entry}


def _write(file: Path, text: str) -> None:
    """Replace ``file`` at once: another process may read it now.

    Raises:
        UnsupportedError: It cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(text, "utf-8")
        part.replace(file)
    except OSError as error:
        msg = (
            f"{file}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a "
            f"folder that can"
        )
        raise UnsupportedError(msg) from error


def _matmul(dtype: Any) -> Any:
    def run(x: Any) -> Any:
        return lax.dot(x, x, preferred_element_type=dtype)

    return jax.jit(run)

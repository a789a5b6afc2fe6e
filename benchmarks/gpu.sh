#!/usr/bin/env bash
# Runs the project on a CUDA device: tests, errors, speed, training, generation, prices, JAX.
#
#     benchmarks/gpu.sh OUT [--steps tests,errors] [--seconds 2400] [--rehearse]
#
# Nothing is installed: the packages of python3 are used, and those in $AMPREWRITE_SITE,
# a folder that `pip install --target` filled elsewhere (pydantic, if python3 has none).
# Each step is a process of its own that saves after every row, so that a step which runs
# out of memory or time loses its own rest alone. With --rehearse the same code runs on
# the CPU with tiny models.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
[[ $# -ge 1 && $1 != -* ]] || {
  echo "usage: benchmarks/gpu.sh OUT [--steps NAMES] [--seconds N] [--rehearse]" >&2
  exit 2
}

export PYTHONPATH="$root${AMPREWRITE_SITE:+:$AMPREWRITE_SITE}${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1                  # no model is fetched
export PYTHONUNBUFFERED=1                # what was printed is there if a step is stopped
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # JAX and torch share the memory of one card

cd "$root"
exec python3 -m benchmarks.gpu --out "$@"

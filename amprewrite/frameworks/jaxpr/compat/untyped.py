"""JAX without its annotations: they are incomplete, which strict checking refuses."""

from typing import Any

import jax as _jax
import jax.numpy as _jnp
from jax import ad_checkpoint as _ad_checkpoint
from jax import lax as _lax
from jax import tree_util as _tree_util
from jax.extend import core as _jex
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir
from jax.interpreters import partial_eval as _partial_eval

ad: Any = _ad
ad_checkpoint: Any = _ad_checkpoint
batching: Any = _batching
jax: Any = _jax
jex: Any = _jex
jnp: Any = _jnp
lax: Any = _lax
mlir: Any = _mlir
partial_eval: Any = _partial_eval
tree_util: Any = _tree_util

"""JAX without its annotations: they are incomplete, which strict checking refuses."""

from typing import Any

import jax as _jax
import jax.numpy as _jnp
from jax import lax as _lax
from jax import tree_util as _tree_util
from jax.extend import core as _jex

jax: Any = _jax
jex: Any = _jex
jnp: Any = _jnp
lax: Any = _lax
tree_util: Any = _tree_util

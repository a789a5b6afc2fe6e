"""XLA as it is by default, inside of a run of tests that compiles quickly.

Most tests ask what a program computes, and most of their time would go into making it
fast: ``conftest.py`` turns off the optimization of machine code and the emitters that
are built on MLIR. What XLA does to a program before it emits code stays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from unittest import mock

EMITTERS = "xla_cpu_use_fusion_emitters"


def knows_emitters() -> bool:
    """Return whether XLA has the flag: it ends the process for one that it lacks.

    It is tried with jaxlib 0.10; others may have lost it.
    """
    try:
        return version("jaxlib").startswith("0.10.")
    except PackageNotFoundError:
        return False


QUICKLY = f"--{EMITTERS}=false" if knows_emitters() else ""
"""Flag of XLA for all tests; empty where it is not known."""


@contextmanager
def as_by_default(*, machine_code: bool = True) -> Iterator[None]:
    """Compile what is compiled inside with the passes and emitters of XLA's defaults.

    What JAX has compiled before is dropped, and what it compiles inside is dropped at
    the end.

    Args:
        machine_code: Whether machine code is optimized, too.
    """
    import jax
    from jax._src import compiler  # noqa: TID251  # no public default of options

    options_of = compiler.get_compile_options

    def optimized(*args: Any, **kwargs: Any) -> Any:
        options = options_of(*args, **kwargs)
        given = dict(options.env_option_overrides)
        quick = {EMITTERS: True} if QUICKLY else {}
        options.env_option_overrides = list({**quick, **given}.items())
        return options

    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    with mock.patch.object(compiler, "get_compile_options", optimized):
        jax.config.update(name, not machine_code)
        jax.clear_caches()
        yield
    jax.config.update(name, before)
    jax.clear_caches()

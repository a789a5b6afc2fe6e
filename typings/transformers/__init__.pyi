# Transformers without types, for pyright: its own __init__ imports every model, and to
# read them takes a third of pyright's time. Its classes are used as Any here.
from typing import Any

def __getattr__(name: str) -> Any: ...  # noqa: ANN401  # a name of any kind

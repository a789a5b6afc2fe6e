"""Refusals of copies and compilers that would lose a converted model's programs."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.derived.refusals import (
    KeepsPrograms,
    no_shallow_copy,
    refuse_copy_of_other,
)


def test_torchscript_is_told_what_to_use_in_its_place() -> None:
    made: Any = KeepsPrograms()
    with pytest.raises(UnsupportedError, match=r"KeepsPrograms.*torch\.jit\.trace"):
        made.__prepare_scriptable__()


def test_the_message_of_a_shallow_copy_names_the_class() -> None:
    assert "Linear cannot be copied by copy.copy" in no_shallow_copy(nn.Linear(1, 1))


def test_a_copy_of_another_object_is_refused() -> None:
    class Asked(nn.Module):
        def __deepcopy__(self, memo: Any) -> Any:
            import inspect  # of this frame alone

            here = inspect.currentframe()
            refuse_copy_of_other(self, None if here is None else here.f_back)
            return 3

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    asked = Asked()
    assert copy.deepcopy(asked) == 3
    with pytest.raises(UnsupportedError, match="Wrapper takes __deepcopy__ from"):
        copy.deepcopy(Wrapper(asked))

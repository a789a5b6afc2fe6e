from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.aten.ops import named_tensors


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Box:
    held: object


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (ONE, ["output"]),
        ((ONE, [ONE, None, ONE]), ["0", "1.0", "1.2"]),
        ({"a": ONE, "b": {"c": (ONE,)}}, ["a", "b.c.0"]),
        (OrderedDict(z=ONE, a=3), ["z"]),
        (Pair(ONE, [ONE]), ["first", "second.0"]),
        (Box(ONE), ["held"]),
        ("text", []),
        (None, []),
    ],
)
def test_names_are_paths(output, names):
    assert [name for name, _ in named_tensors(output)] == names


def test_outputs_of_transformers_give_their_fields():
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.BaseModelOutput(
        last_hidden_state=ONE, hidden_states=(ONE, ONE)
    )
    names = [name for name, _ in named_tensors(output)]
    assert names == ["last_hidden_state", "hidden_states.0", "hidden_states.1"]


def test_a_cache_gives_its_tensors():
    transformers = pytest.importorskip("transformers")
    from amprewrite.frameworks.torch_fx.compat.settings import register_caches

    register_caches()
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    assert len(list(named_tensors({"past_key_values": cache}))) == 2

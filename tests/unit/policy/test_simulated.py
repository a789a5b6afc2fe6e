from typing import Any

import pytest

from amprewrite.errors import PolicyError
from amprewrite.policy import load_policy
from amprewrite.policy.load import simulated_name
from amprewrite.policy.model import Contract


def contract_of(formats: str, scaling: Any = "none"):
    name = simulated_name(formats, scaling)
    found = load_policy(name)
    assert (found.name, found.low, found.full) == (name, "", "float32")
    return found.contract


def test_formats():
    names = "float8_e4m3fn", "float8_e5m2"
    assert contract_of("e4m3/e5m2") == Contract(*names)
    assert contract_of("e4m3/e5m2", "current") == Contract(*names, "current")
    assert contract_of("e4m3") == Contract("float8_e4m3fn", "float8_e4m3fn")
    assert contract_of("e4m3/") == Contract("float8_e4m3fn", "")
    assert contract_of("/e5m2") == Contract("", "float8_e5m2")
    fnuz = "float8_e4m3fnuz", "float8_e5m2fnuz"
    assert contract_of("/".join(fnuz)) == Contract(*fnuz)


def test_mistakes():
    with pytest.raises(PolicyError, match="found format 'e4m4'; want two of e4m3"):
        load_policy("simulate e4m4/e5m2")
    with pytest.raises(PolicyError, match="found scaling 'delayed twice'; want none"):
        load_policy("simulate e4m3/e5m2 delayed twice")

import pytest

from amprewrite.dtypes.lattice import Lattice
from amprewrite.errors import PromotionError

DIAMOND = Lattice({"a": "bc", "b": "d", "c": "d", "d": "", "alone": ""})
CROWN = Lattice({"a": "xy", "b": "xy", "x": "", "y": ""})


def test_join():
    assert DIAMOND.join("bc") == "d"
    assert DIAMOND.join("ab") == "b"
    assert DIAMOND.join("a") == "a"
    assert DIAMOND.join("aacb") == "d"


def test_common():
    assert DIAMOND.common("bc") == {"d"}
    assert CROWN.common("ab") == {"x", "y"}


def test_no_upper_bound():
    with pytest.raises(PromotionError, match="a and alone have no common dtype"):
        DIAMOND.join(["a", "alone", "a"])


def test_no_least_upper_bound():
    with pytest.raises(PromotionError, match="a and b have no common dtype"):
        CROWN.join("ab")


def test_a_path_has_the_fewest_steps():
    lattice = Lattice({"a": ("b", "d"), "b": ("c",), "c": ("d",), "d": ()})
    assert lattice.path("a", "d") == ("a", "d")
    assert lattice.path("a", "c") == ("a", "b", "c")
    assert lattice.path("d", "d") == ("d",)
    with pytest.raises(PromotionError, match="d does not become a"):
        lattice.path("d", "a")

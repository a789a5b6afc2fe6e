"""Constants that a first call leaves in a model are named as its code spells them."""

import pytest

pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant


@pytest.mark.parametrize(
    ("part", "settings", "full_name"),
    [
        ("", "", "self.kind"),
        ("inner", "", "self.inner.kind"),
        ("", "config", "self.config.kind"),
        ("inner.0", "config", "self.inner.0.config.kind"),
    ],
)
def test_the_full_name(part: str, settings: str, full_name: str) -> None:
    assert Constant(part, settings, "kind", "first").full_name == full_name

"""Constants that a first call leaves in a model, for the calls after it."""

from typing import NamedTuple


class Constant(NamedTuple):
    """A constant that a call leaves where nothing was, for the calls after it.

    It is a name in an object, as ``config.problem_type`` of transformers, or a flag of
    a module.

    Attributes:
        part: Path of the module.
        settings: Attribute of the module that is the object; empty for the module.
        name: Name of the attribute that is written.
        value: The constant.
    """

    part: str
    settings: str
    name: str
    value: str | bool

    @property
    def full_name(self) -> str:
        """The attribute, as the code of the model spells it."""
        return ".".join(filter(None, ("self", self.part, self.settings, self.name)))

"""What the fields of a plan may hold."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from amprewrite.plan.fields import ClassName, Count, DtypeName, Folding, LowName


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (ClassName, "allow", "Allow"),
        (LowName, "", "int8"),
        (LowName, "float8_e4m3fn", "fp8"),
        (DtypeName, "complex64", ""),
        (Folding, "kernel", "load"),
        (Count, 2**63, 2**63 + 1),
        (Count, 0, -1),
    ],
)
def test_a_field_holds_its_words_only(kind: Any, good: object, bad: object) -> None:
    adapter = TypeAdapter[object](kind)
    assert adapter.validate_python(good) == good
    with pytest.raises(ValidationError):
        adapter.validate_python(bad)


def test_the_nearest_word_is_offered() -> None:
    with pytest.raises(ValidationError, match=r"did you mean 'bfloat16'\?"):
        TypeAdapter[object](DtypeName).validate_python("bfloat61")

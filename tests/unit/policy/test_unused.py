"""What a rule that matched nothing could have meant."""

import pytest

from amprewrite.ir import Op
from amprewrite.policy import OpClass, Rule
from amprewrite.policy.match import why_unused


def an_op(canonical: str, path: str) -> Op:
    native = f"aten.{canonical}.default"
    return Op(f"{canonical}_1", canonical, native, ("x",), ("y",), path=path)


OPS = [
    an_op("linear", "bert.encoder.layer.1.attention"),
    an_op("layer_norm", "bert.encoder.layer.1.norm"),
    an_op("gelu", "bert.encoder.layer.10"),
    an_op("softmax", ""),
]


def why(**keys: str) -> str:
    return why_unused(Rule(op_class=OpClass.DENY, **keys), OPS)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"path": "encoder.layer.1"}, "nearest 'bert.encoder.layer.1'"),
        ({"path": "bert.encoder.layer.2.*"}, "nearest 'bert.encoder.layer.1"),
        ({"op": "layernorm"}, "no op is 'layernorm', nearest 'layer_norm'"),
        ({"native": "aten.layernorm.default"}, "nearest 'aten.layer_norm.default'"),
        ({"op_name": "gelu"}, "no op name is 'gelu', nearest 'gelu_1'"),
        ({"source": "model.py:3"}, "no op of this program has a source line"),
        ({"op": "conv"}, "there are 'gelu', 'layer_norm', 'linear', ..."),
    ],
)
def test_the_nearest_names_of_the_key_that_matches_nothing(
    keys: dict[str, str], words: str
) -> None:
    assert words in why(**keys)


def test_the_key_at_fault_is_the_one_that_matches_nothing() -> None:
    found = why(op="linear", path="bert.decoder")
    assert found.startswith("; no module path is 'bert.decoder', nearest 'bert.encoder")


def test_keys_that_no_op_has_together() -> None:
    assert why(op="gelu", path="*.norm") == "; none has all of these keys"


def test_a_rule_that_comes_too_late() -> None:
    assert "overrides or rules before it decide" in why(op="gelu")


def test_a_program_without_ops_has_no_names() -> None:
    assert why_unused(Rule(op_class=OpClass.DENY, op="gelu"), []) == ""

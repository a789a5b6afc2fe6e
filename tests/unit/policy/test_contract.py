import pytest

from amprewrite.errors import PolicyError
from amprewrite.plan.validation.maker import policy_digest
from amprewrite.policy import load_policy
from amprewrite.policy.model import Contract


def policy_of(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_policy(str(path))


def test_shipped_policies():
    assert load_policy("bf16").contract == Contract()
    assert not Contract()
    found = load_policy("fp8")
    assert found.low == "bfloat16"
    assert found.contract == Contract("float8_e4m3fn", "float8_e5m2", "current")
    unit = load_policy("unit-fp8").contract
    assert (unit.scaling, unit.spare_residual) == ("none", True)


def test_a_file_changes_single_keys(tmp_path):
    text = 'extends = "fp8"\n[contract]\nbackward = ""\n'
    found = policy_of(tmp_path, text).contract
    assert found == Contract("float8_e4m3fn", "", "current")


def test_the_digest_counts_formats(tmp_path):
    plain = policy_of(tmp_path, 'extends = "bf16"\n')
    quantised = policy_of(tmp_path, 'extends = "fp8"\n')
    assert policy_digest(plain) == policy_digest(load_policy("bf16"))
    assert policy_digest(quantised) != policy_digest(plain)
    text = 'extends = "fp8"\n[contract]\nkernel = "{}"\n'
    digests = {
        kernel: policy_digest(policy_of(tmp_path, text.format(kernel)))
        for kernel in ("emulated", "auto", "scaled_mm")
    }
    assert digests["emulated"] == policy_digest(quantised)
    assert len(set(digests.values())) == 3


def test_mistakes(tmp_path):
    text = (
        '[contract]\nforward = "float8_e4m3f"\nbackward = "float16"\n'
        'scaling = "delayed"\nkernel = "fast"\nfourward = ""\n'
    )
    with pytest.raises(PolicyError) as caught:
        policy_of(tmp_path, text)
    found = str(caught.value)
    assert "contract.forward: found 'float8_e4m3f'; want float8_e3m4" in found
    assert "did you mean 'float8_e4m3fn'?" in found
    assert "contract.backward: found 'float16'" in found
    assert "contract.scaling: found 'delayed'" in found
    assert "contract.kernel: found 'fast'" in found
    assert "contract.fourward: unknown key; want one of forward, backward" in found


def test_8_bits_are_no_dtype_between_ops(tmp_path):
    with pytest.raises(PolicyError) as caught:
        policy_of(tmp_path, '[dtypes]\nlow = "float8_e4m3fn"\n')
    want = "[contract] has formats inside of contractions; want float16, bfloat16"
    assert want in str(caught.value)

"""Policies are listed, shown, compared and checked."""

import json

from tests.command_line import done, mistake, run


def test_policy_lists_what_is_shipped():
    assert "float16" in done("policy")
    assert json.loads(done("policy", "--json"))["bf16"].startswith("bfloat16")


def test_policy_shows_one():
    assert "exp and a sum" in done("policy", "bf16")
    assert (
        json.loads(done("policy", "bf16", "--json"))["ops"]["matmul"]["class"]
        == "allow"
    )


def test_policy_diff():
    assert "low: bfloat16 -> float16" in done("policy", "bf16", "--diff", "fp16")
    assert done("policy", "bf16", "--diff", "bf16") == "no difference\n"
    assert json.loads(done("policy", "bf16", "--diff", "bf16", "--json")) == []


def test_policy_check_says_every_mistake(policy_file):
    result = run("policy", "--check", policy_file)
    assert result.exit_code == 2
    assert "unknown class 'den'" in result.stderr
    policy_file.write_text(
        'extends = "bf16"\n[ops]\nsoftmx = "deny"\nlaier_norm = "deny"\n'
    )
    result = run("policy", "--check", policy_file)
    assert "did you mean 'softmax'?" in result.stderr
    assert "did you mean 'layer_norm'?" in result.stderr


def test_policy_check_of_a_good_file(policy_file):
    policy_file.write_text('extends = "bf16"\n[ops]\ngelu = "deny"\n')
    result = run("policy", "--check", policy_file)
    assert result.exit_code == 0
    assert "no mistakes" in result.stderr


def test_diff_without_a_policy_is_one_line():
    assert "want policy NAME --diff OTHER" in mistake("policy", "--diff", "bf16")


def test_a_missing_file_is_one_line(tmp_path):
    assert "cannot be read" in mistake("policy", "--check", tmp_path / "no.toml")

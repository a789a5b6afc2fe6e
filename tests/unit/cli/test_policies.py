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
    assert "low: bfloat16 -> float16" in done("policy", "diff", "bf16", "fp16")
    assert done("policy", "diff", "bf16", "bf16") == "no difference\n"
    assert json.loads(done("policy", "diff", "bf16", "bf16", "--json")) == []


def test_policy_check_says_every_mistake(policy_file):
    result = run("policy", "check", policy_file)
    assert result.exit_code == 2
    assert "unknown class 'den'" in result.stderr
    assert "ops.softmx: unknown op (did you mean 'softmax'?)" in result.stderr
    policy_file.write_text(
        'extends = "bf16"\n[ops]\nsoftmx = "deny"\nlaier_norm = "deny"\n'
    )
    result = run("policy", "check", policy_file)
    assert "did you mean 'softmax'?" in result.stderr
    assert "did you mean 'layer_norm'?" in result.stderr


def test_policy_check_of_a_good_file(policy_file):
    policy_file.write_text('extends = "bf16"\n[ops]\ngelu = "deny"\n')
    result = run("policy", "check", policy_file)
    assert result.exit_code == 0
    assert "no mistakes" in result.stderr


def test_a_good_file_is_json_too(policy_file):
    policy_file.write_text('extends = "bf16"\n[ops]\ngelu = "deny"\n')
    found = json.loads(done("policy", "check", policy_file, "--json"))
    assert found["ok"] is True


def test_the_named_commands_are_the_same_as_a_name_alone():
    assert done("policy", "list") == done("policy")
    assert done("policy", "show", "off") == done("policy", "off")


def test_diff_wants_two_policies():
    result = run("policy", "diff", "bf16")
    assert result.exit_code == 2
    assert "Missing argument 'OTHER'" in result.stderr


def test_a_missing_file_is_one_line(tmp_path):
    assert "cannot be read" in mistake("policy", "check", tmp_path / "no.toml")

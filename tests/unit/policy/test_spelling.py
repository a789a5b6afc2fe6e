import pytest

from amprewrite.policy.spelling import (
    MOST,
    Spelling,
    misspelt,
    near,
    unknown_group,
)

KNOWN = ("matmul", "softmax")


def test_the_nearest_word_is_offered():
    assert near("sofmax", KNOWN) == " (did you mean 'softmax'?)"
    assert near("xyz", KNOWN) == ""


def test_a_name_near_to_an_op_is_misspelt():
    assert misspelt("sofmax", KNOWN) == "unknown op 'sofmax' (did you mean 'softmax'?)"


@pytest.mark.parametrize("name", ["softmax", "mylib::softmx", "sofmax*", "new"])
def test_a_known_name_a_qualified_one_a_glob_and_a_new_one_are_not(name):
    assert misspelt(name, KNOWN) == ""


def test_a_group_is_one_of_the_table_or_a_glob_of_some():
    assert not unknown_group(None)
    assert not unknown_group("softmax")
    assert not unknown_group("*_sum")
    assert unknown_group("*_summ").startswith("unknown group '*_summ'; want one of a")
    assert unknown_group("softmx").endswith("(did you mean 'softmax'?)")


def test_each_name_is_compared_once_and_only_the_first():
    spelling = Spelling(KNOWN)
    assert spelling.mistake("sofmax") == misspelt("sofmax", KNOWN)
    assert spelling.mistake("sofmax")
    assert not spelling.rest
    for number in range(MOST):
        spelling.mistake(f"wholly_{number}_other")
        spelling.mistake(f"mylib::op{number}")
    assert spelling.rest.startswith(f"{spelling.left_out} more names of no known op")

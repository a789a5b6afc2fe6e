import pytest

from amprewrite.policy.spelling import misspelt, near

KNOWN = ("matmul", "softmax")


def test_the_nearest_word_is_offered():
    assert near("sofmax", KNOWN) == " (did you mean 'softmax'?)"
    assert near("xyz", KNOWN) == ""


def test_a_name_near_to_an_op_is_misspelt():
    assert misspelt("sofmax", KNOWN) == "unknown op 'sofmax' (did you mean 'softmax'?)"


@pytest.mark.parametrize("name", ["softmax", "mylib::softmx", "sofmax*", "new"])
def test_a_known_name_a_qualified_one_a_glob_and_a_new_one_are_not(name):
    assert misspelt(name, KNOWN) == ""

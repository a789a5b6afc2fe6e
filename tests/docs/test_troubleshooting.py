"""Each message on the page of troubleshooting is raised as it is quoted there."""

import re
import warnings

import pytest

from amprewrite import errors
from tests.docs.blocks import blocks_of, matches
from tests.docs.links import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTES = [b for b in blocks_of(PAGE.read_text("utf-8")) if b.language == "text"]
LINE = re.compile(r"[\w./-]+\.py:\d+")
"""A file with a line: here that of a test, for a reader that of a model."""
KIND = re.compile(r"\bConverted\w+")
"""The class of a converted model, named after the model's."""


def as_printed(error):
    return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """What each mistake prints: its error, or its warnings."""
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from tests.docs.raised import MISTAKES

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("mistakes"))
        for name, make in MISTAKES.items():
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                try:
                    make()
                except errors.AmpError as error:
                    found[name] = [as_printed(error)]
                else:
                    ours = errors.AmpWarning
                    kept = [w.message for w in given if issubclass(w.category, ours)]
                    found[name] = [as_printed(message) for message in kept]
    return found


def is_quoted(message, quote):
    shown, printed = (
        KIND.sub("Converted", LINE.sub("#", text)) for text in (quote.text, message)
    )
    return matches(shown, printed)


@pytest.mark.slow
def test_each_quoted_message_is_raised(messages):
    raised = [message for found in messages.values() for message in found]
    unraised = [q.text for q in QUOTES if not any(is_quoted(m, q) for m in raised)]
    assert not unraised, "\n\n".join(raised)


@pytest.mark.slow
def test_each_mistake_is_on_the_page(messages):
    assert not {
        name: found
        for name, found in messages.items()
        if not any(is_quoted(m, q) for m in found for q in QUOTES)
    }


def test_every_error_is_on_the_page():
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, (errors.AmpError, Warning))
        if not name.startswith("_")
    }
    assert {q.text.partition(":")[0] for q in QUOTES} == kinds - {"AmpError"}


def test_a_message_that_is_not_quoted_is_found():
    (quote,) = blocks_of("```text\nE: at model.py:3\n...\n```\n")
    assert is_quoted("E: at raised.py:12\nmore\nlines", quote)
    assert not is_quoted("E: of raised.py:12\nmore", quote)

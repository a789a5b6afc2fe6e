"""The demo's sentences are many, different and in pairs of near the same meaning."""

from amprewrite.demo.run import SENTENCES


def test_sentences_differ():
    assert len(SENTENCES) == len(set(SENTENCES)) == 36
    assert all(sentence.endswith(".") for sentence in SENTENCES)

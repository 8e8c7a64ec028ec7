"""Messages are sentences for a reader: no doubled blanks or stops, no shouting, no apology."""

from scripts.list_messages import listing


def test_messages_are_sentences_for_a_reader():
    lines = listing().splitlines()
    assert len(lines) > 300
    for line in lines:
        assert ".." not in line.replace("...", "").replace("../", ""), line
        assert not any(word in line.lower() for word in ("sorry", "please", "oops", "invalid argument")), line

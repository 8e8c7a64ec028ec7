"""The messages that users meet keep the rules of the house; `python scripts/list_messages.py` lists them all."""

from scripts.list_messages import listing


def test_messages_are_sentences_for_a_reader():
    """No doubled blanks or stops, no shouting, no apology."""
    lines = [line for line in listing().splitlines() if line.startswith("    ")]
    assert len(lines) > 400  # the search finds them
    for line in lines:
        assert ".." not in line.replace("...", "").replace("../", ""), line
        assert not any(word in line.lower() for word in ("sorry", "please", "oops", "invalid argument")), line

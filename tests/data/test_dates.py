"""The pairs of texts: every answer is right, no day is in two splits, the counts of the config's comment."""

import datetime
import re

import pytest

from fourierformer.data.text import dates
from fourierformer.data.text.pairs import CHARACTERS, END, PAD, PairsData, decode, encode, load_pairs

DATA = PairsData(name="builtin_dates", pairs="dates", seed=0, held_out=2000)
MONTHS = {name: number for number, name in enumerate(dates.MONTHS, start=1)} | {
    name[:3]: number for number, name in enumerate(dates.MONTHS, start=1)
}


@pytest.fixture(scope="module")
def corpus():
    return load_pairs(DATA)


def read(text: str) -> datetime.date:
    """A date read back by rules of its own: the year is what has four digits, the month what is a name."""
    if match := re.fullmatch(r"(\d+)\.(\d+)\.(\d{4})", text):
        return datetime.date(int(match[3]), int(match[2]), int(match[1]))
    if match := re.fullmatch(r"(\d+)/(\d+)/(\d{4})", text):
        return datetime.date(int(match[3]), int(match[1]), int(match[2]))
    words = re.findall(r"[a-z-]+|\d+(?:st|nd|rd|th)?", text)
    (month,) = {MONTHS[word] for word in words if word in MONTHS}
    (year,) = (int(word) for word in words if re.fullmatch(r"\d{4}", word))
    (day,) = (day_of(word) for word in words if word not in ("the", "of", *MONTHS, *dates.WEEKDAYS, str(year)))
    return datetime.date(year, month, day)


def day_of(word: str) -> int:
    digits = re.match(r"\d+", word)
    return int(digits[0]) if digits else dates.NAMED.index(word) + 1


def test_every_answer_is_right_and_every_day_there_once(corpus):
    pairs = [pair for split in corpus.splits.values() for pair in split.texts]
    assert all(read(source).isoformat() == answer for source, answer in pairs)
    assert len({answer for _, answer in pairs}) == len(pairs) == 73_049  # 200 years of 365 days, 49 leap days
    assert {split: len(found) for split, found in corpus.splits.items()} == {
        **{"valid": 2000, "test": 2000, "train": 69_049}
    }
    lengths = {len(source) for source, _ in pairs}
    assert (min(lengths), max(lengths)) == (8, 36)


def test_spellings_by_hand():
    day = datetime.date(1977, 9, 3)
    assert [dates.spelled(day, spelling) for spelling in dates.SPELLINGS] == [
        "3 september 1977",
        "september 3, 1977",
        "3 sep 1977",
        "sep 3rd, 1977",
        "the 3rd of september, 1977",
        "the third of september 1977",
        "september the third, 1977",
        "saturday, 3 september 1977",
        "3.9.1977",
        "9/3/1977",
    ]
    endings = [dates.ordinal_ending(day) for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 31)]
    assert endings == ["st", "nd", "rd", "th", "th", "th", "th", "st", "nd", "rd", "st"]
    assert len(dates.NAMED) == 31
    assert (dates.NAMED[11], dates.NAMED[20], dates.NAMED[30]) == ("twelfth", "twenty-first", "thirty-first")


def test_all_spellings_are_in_all_splits(corpus):
    for split in corpus.splits.values():
        shares = [
            sum(re.search(mark, text) is not None for text, _ in split.texts) / len(split) for mark in ("/", r"\.")
        ]
        assert all(0.08 < share < 0.12 for share in shares)  # one in ten each


def test_the_seed_decides_what_is_held_out(corpus):
    other = dates.pairs(1, 2000)["valid"]
    assert len({answer for _, answer in other} & {answer for _, answer in corpus.splits["valid"].texts}) < 200


def test_a_row_is_the_text_its_end_and_padding(corpus):
    split = corpus.splits["test"]
    for (source, answer), row, target in zip(split.texts[:50], split.sources, split.answers, strict=False):
        assert decode(row) == source
        assert row[len(source)] == END
        assert (row[len(source) + 1 :] == PAD).all()
        assert target.tolist() == encode(answer)
    assert decode(encode(CHARACTERS.strip())) == CHARACTERS.strip()
    assert decode([PAD, *encode("1"), 7]) == "?1"

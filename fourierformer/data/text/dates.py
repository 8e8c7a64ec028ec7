"""Dates in many spellings, each with its ISO form: pairs of texts whose answers can be checked exactly.

"the twenty-seventh of september 1977" -> "1977-09-27". Every day of 1900 to 2099 occurs once, 73,049 days, in one
spelling of ten. Split and spelling are a function of the data's seed alone. A day is in one split only, so no split
holds another spelling of a training day.
"""

import datetime

from fourierformer.seeds import seed_of

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
UNITS = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    *("eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth"),
    "nineteenth",
)
NAMED = [*UNITS, "twentieth", *(f"twenty-{unit}" for unit in UNITS[:9]), "thirtieth", "thirty-first"]
SPELLINGS = (
    "{day} {month} {year}",
    "{month} {day}, {year}",
    "{day} {short} {year}",
    "{short} {nth}, {year}",
    "the {nth} of {month}, {year}",
    "the {named} of {month} {year}",
    "{month} the {named}, {year}",
    "{weekday}, {day} {month} {year}",
    "{day}.{number}.{year}",  # with full stops the day comes first
    "{number}/{day}/{year}",  # with slashes the month
)


def spelled(date: datetime.date, spelling: str) -> str:
    """A date as a text: spelled(date(1977, 9, 27), "the {named} of {month} {year}")."""
    month = MONTHS[date.month - 1]
    days = {"nth": f"{date.day}{ordinal_ending(date.day)}", "named": NAMED[date.day - 1]}
    names = {"month": month, "short": month[:3], "weekday": WEEKDAYS[date.weekday()]}
    return spelling.format(day=date.day, number=date.month, year=date.year, **days, **names)


def ordinal_ending(day: int) -> str:
    return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def pairs(seed: int, held_out: int) -> dict[str, list[tuple[str, str]]]:
    """(source, answer) per split in random order: `held_out` pairs each in valid and test, all others in train."""
    days = [FIRST + datetime.timedelta(number) for number in range((LAST - FIRST).days + 1)]
    drawn = sorted((seed_of("date", seed, day), day) for day in days)
    found = [(spelled(day, SPELLINGS[number % len(SPELLINGS)]), day.isoformat()) for number, day in drawn]
    return {"valid": found[:held_out], "test": found[held_out : 2 * held_out], "train": found[2 * held_out :]}

"""Printing of texts for people; tables and progress bars are printed by rich, with `visible` texts."""

import re
from typing import Any

# control characters but tab and line end, line separators, marks that change the direction of writing, and bytes of a
# file's name that are no UTF-8, which a strict stream refuses
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: object) -> str:
    r"""The text with control characters as text, such as \x1b: in a file of somebody else they may clear the screen,
    rename the window or hide a part of a line."""
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def echo(*values: object, **options: Any) -> None:
    """Print values as print() does, with control characters made visible."""
    print(*map(visible, values), **options)

"""An error of another library in one line."""

import pytest

from fourierformer.errors import first_line, one_line, short


@pytest.mark.parametrize(
    ("message", "whole", "first", "named"),
    [
        ("no route", "no route", "no route", "OSError: no route"),
        ("gone\n  since then\n", "gone since then", "gone", "OSError: gone"),
        ("\n\nwhy\nbecause", "why because", "why", "OSError: why"),
        (" \n", "OSError", "OSError", "OSError: no message"),
    ],
)
def test_an_error_is_one_line(message, whole, first, named):
    error = OSError(message)
    assert (one_line(error), first_line(error), short(error)) == (whole, first, named)

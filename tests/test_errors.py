"""An error of another library in one line."""

import pytest

from fourierformer.errors import first_line, one_line, out_of_memory_text, short


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


@pytest.mark.parametrize("kind", [ImportError, OSError])  # of an extension module, and of ctypes
def test_a_library_that_does_not_fit_into_the_address_space_is_too_little_memory(kind):
    text = out_of_memory_text(kind("libtorch_cpu.so: failed to map segment from shared object"))
    assert text.startswith("there is not enough memory to load torch (libtorch_cpu.so: failed to map")
    assert "ulimit -v" in text
    assert out_of_memory_text(kind("no such module")) is None

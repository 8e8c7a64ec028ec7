"""The colours of series stand out from the paper, in both of the page's sets."""

import re

import numpy as np
import pytest

from fourierformer.report.picture import SERIES
from tests.helpers.command_line import REPOSITORY

STYLE = (REPOSITORY / "fourierformer/report/templates/style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in STYLE.split("prefers-color-scheme: dark"))


def series(colours: dict[str, str]) -> list[str]:
    return [colours[f"series-{number}"] for number in range(len(SERIES))]


def linear(colour: str) -> np.ndarray:
    """sRGB without its gamma (IEC 61966-2-1)."""
    share = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Of WCAG 2.2, from 1 to 21; pictures need 3 (success criterion 1.4.11)."""
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_of_black_and_white():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_files_and_the_page_have_the_same_light_colours():
    assert series(LIGHT) == list(SERIES)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_series_stand_out_from_the_paper(colours):
    for colour in series(colours):
        assert contrast(colour, colours["paper"]) > 3, colour

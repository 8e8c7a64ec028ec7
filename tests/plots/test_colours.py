"""The colours of series can be told from each other and from the paper, in both of the page's sets."""

import re
from itertools import combinations

import numpy as np
import pytest

from fourierformer.plots.picture import SERIES
from tests.helpers.command_line import REPOSITORY

STYLE = (REPOSITORY / "fourierformer/templates/style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in STYLE.split("prefers-color-scheme: dark"))


def series(colours: dict[str, str]) -> list[str]:
    return [colours[f"series-{number}"] for number in range(len(SERIES))]


def linear(colour: str) -> np.ndarray:
    """sRGB without its gamma (IEC 61966-2-1)."""
    share = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def oklab(colour: str) -> np.ndarray:
    """Oklab (Ottosson, 2020), where equal distances look about equally different; black and white are 1 apart."""
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return to_lab @ np.cbrt(to_cones @ linear(colour))


def contrast(one: str, other: str) -> float:
    """Of WCAG 2.2, from 1 to 21; pictures need 3 (success criterion 1.4.11)."""
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def test_oklab_and_contrast_of_black_and_white():
    assert np.linalg.norm(oklab("#ffffff") - oklab("#000000")) == pytest.approx(1, abs=1e-6)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_files_and_the_page_have_the_same_light_colours():
    assert series(LIGHT) == list(SERIES)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_series_can_be_told_apart(colours):
    for one, other in combinations([*series(colours), colours["ink"]], 2):
        assert np.linalg.norm(oklab(one) - oklab(other)) > 0.1, (one, other)
    for colour in series(colours):
        assert contrast(colour, colours["paper"]) > 3, colour

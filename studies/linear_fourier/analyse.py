"""linear_fourier_errors.csv -> its chart: python -m studies.linear_fourier.analyse"""

from dataclasses import fields
from pathlib import Path

from fourierformer.files import read_csv
from studies.linear_fourier.simulate import Row, picture

HERE = Path(__file__).resolve().parent


def rows() -> list[Row]:
    """Numbers of the file; an empty cell is None."""
    lines = read_csv(HERE / "linear_fourier_errors.csv").rows
    return [Row(**{each.name: _value(each.name, line[each.name]) for each in fields(Row)}) for line in lines]


def _value(name: str, text: str):
    if name in ("table", "method"):
        return text
    return None if text == "" else int(text) if name in ("width", "features") else float(text)


if __name__ == "__main__":
    picture(rows()).save(HERE)

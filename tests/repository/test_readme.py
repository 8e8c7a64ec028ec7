"""README is read in one sitting, and its numbers are those of the committed runs."""

import csv
import json
import re

from studies.rates.overview import fingerprint
from tests.helpers.command_line import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
NAMES = (REPOSITORY / "docs/names.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_its_picture_shows_the_numbers_of_today():
    pictures = REPOSITORY / "studies/rates"
    assert "studies/rates/overview.png" in README
    assert (pictures / "overview.png").is_file()
    assert fingerprint() in (pictures / "overview.svg").read_text(encoding="utf-8"), "stale: run `make studies`"


def test_metrics_rows_are_as_shown():
    rows = [json.loads(row.replace(", ...", "")) for row in re.findall(r'`(\{"step".*?\})`', NAMES)]
    assert [sorted(row) for row in rows] == [["step", "train_loss"], ["step", "valid_ppl"]]


def test_what_it_says_of_correlated_features_was_measured():
    lines = (REPOSITORY / "studies/estimators/estimator_correlations.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    ratios = [float(row["ratio_to_gaussian"]) for row in rows if row["kernel"] == "sinc^4"]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times the isotropic Gaussian's" in README
    case = {"dim": "2", "correlation": "0.9", "samples": "1000", "kernel": "gaussian, full covariance"}
    (row,) = [row for row in rows if case.items() <= row.items()]
    assert f"has {float(row['ratio_to_gaussian']):.2f} times that error at correlation 0.9" in README

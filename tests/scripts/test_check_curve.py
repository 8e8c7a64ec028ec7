"""The committed curves belong to the recipe they name, and a run that does not learn falls out of their band."""

import math
import sys

import pytest

from fourierformer.errors import SetupError
from tests.helpers.command_line import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import check_curve
from check_curve import ATTENTIONS, REFERENCE, compare, read_curve, write_curve


def constant(loss: float) -> dict[int, float]:
    return {20: loss, 40: loss - 1}


def test_the_band_is_four_deviations_or_two_percent(tmp_path):
    path = tmp_path / "curve.csv"
    write_curve(path, [{20: 5.0, 40: 4.0}, {20: 5.0, 40: 4.5}], "# commit: abc\n")
    assert path.read_text().startswith("# commit: abc\n")
    curve = read_curve(path)
    assert curve[20] == pytest.approx((5.0, 4.9, 5.1))  # no spread: 2 % of 5
    sd = 0.5 / math.sqrt(2)  # of 4.0 and 4.5
    assert curve[40] == pytest.approx((4.25, 4.25 - 4 * sd, 4.25 + 4 * sd), abs=1e-4)


@pytest.mark.parametrize(("found", "fine"), [(5.05, True), (5.2, False), (4.8, False), (math.nan, False)])
def test_inside_and_outside(tmp_path, found, fine):
    write_curve(tmp_path / "curve.csv", [constant(5.0)], "")
    lines, good = compare(read_curve(tmp_path / "curve.csv"), {20: found, 40: 4.0})
    assert good is fine
    assert ("outside" in "".join(lines)) is not fine


def test_a_run_that_stopped_early_is_not_fine(tmp_path):
    write_curve(tmp_path / "curve.csv", [constant(5.0)], "")
    lines, good = compare(read_curve(tmp_path / "curve.csv"), {20: 5.0})
    assert not good
    assert "missing" in lines[-1]


@pytest.mark.parametrize("wrong", [None, *ATTENTIONS])
def test_one_attention_that_does_not_train_as_it_should_is_enough(tmp_path, monkeypatch, wrong):
    def train(folder, attention, seed, device):
        off = 5 if attention == wrong else 0
        return {step: mean + off for step, (mean, *_) in read_curve(REFERENCE / f"{attention}.csv").items()}

    monkeypatch.setattr(check_curve, "train", train)
    assert check_curve.check(tmp_path, "cpu") == (wrong is None)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_committed_curves_are_of_a_run_that_learns(name):
    """From about ln 8,192 = 9.01, the loss of guessing, to well below the first evaluation."""
    curve = read_curve(REFERENCE / f"{name}.csv")
    assert list(curve) == list(range(20, 201, 20))
    means = [mean for mean, _, _ in curve.values()]
    assert 7.5 < means[0] < math.log(8192) + 0.1
    assert means[-1] < means[0] - 1
    assert all(high - low < 1 for _, low, high in curve.values())


def test_without_the_file_it_is_one_line(tmp_path):
    with pytest.raises(SetupError, match="clone of the repository"):
        read_curve(tmp_path / "none.csv")

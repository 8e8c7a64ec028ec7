"""The pictures of docs/results.md: their points are the numbers of the rows, and those committed are not stale."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fourierformer.results import collect
from fourierformer.results.measured import write_measured
from studies.real_data.figures import differences, fingerprint, picture_of, read_evidence, shares
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import write_run

EPOCH, STEPS, TOKENS = 100, 600, 4_915_200  # evaluations lie EPOCH steps apart; the others as synthetic_runs has them


def rows_of(level: float) -> list[dict]:
    """Validation perplexities level + 5, ..., level + 0."""
    return [{"step": step, "valid_ppl": level + (STEPS - step) / EPOCH} for step in range(EPOCH, STEPS + 1, EPOCH)]


@pytest.fixture
def evidence(tmp_path):
    """Softmax, and an attention that is 10 lower with seed 1, 20 lower with seed 2, and takes twice the time."""
    for seed in (1, 2):
        results = {"results": {"test": {"overlapping": {"ppl": 100.0, "tokens": 9, "context": 64, "stride": 8}}}}
        write_run(tmp_path / "runs", "softmax", seed, rows=rows_of(100), changes=results)
        ours = {
            "results": {"test": {"overlapping": results["results"]["test"]["overlapping"] | {"ppl": 100 - 10.0 * seed}}}
        }
        run = write_run(tmp_path / "runs", "fourier", seed, rows=rows_of(100 - 10 * seed), changes=ours)
        layers = [{"attended_share": 0.5 * seed}, {"attended_share": 0.0}]
        (run / "heads.json").write_text(json.dumps({"splits": {"test": {"layers": layers, "mean": {}}}}))
    write_measured(collect(tmp_path / "runs"), tmp_path / "evidence_lm.csv")
    (tmp_path / "evidence_lm_time.csv").write_text(
        "overrides,speed_ratio\nvariant=evidence/softmax,1\nattention=fourier,0.5\n"
    )
    (found,) = read_evidence(tmp_path)
    return found


def test_points_are_the_numbers(evidence):
    ((label, mean, half),) = differences(evidence)
    assert (label, mean) == ("fourier", -15)
    assert half == pytest.approx(12.706 * 50**0.5 / 2**0.5, rel=1e-4)  # t(0.975, 1) sd / sqrt(n), sd of -10 and -20
    assert shares(evidence) == {"fourier": [0.75, 1e-40]}  # a share of 0 has no place on a scale of powers


def test_curves_lie_at_their_tokens_and_times(evidence):
    _, tokens, time, _ = picture_of(evidence).figure.axes
    softmax, fourier = tokens.lines
    assert fourier.get_xdata() == pytest.approx(
        [step * TOKENS / STEPS / 1e6 for step in range(EPOCH, STEPS + 1, EPOCH)]
    )
    assert fourier.get_ydata() == pytest.approx([85 + i for i in (5, 4, 3, 2, 1, 0)])  # the mean of 90 and 80
    softmax, fourier = time.lines
    assert softmax.get_xdata()[-1] == pytest.approx(1)
    assert fourier.get_xdata()[-1] == pytest.approx(2)


def test_without_timings_there_are_no_curves_against_time(evidence):
    evidence.speeds.clear()
    _, tokens, time, _ = picture_of(evidence).figure.axes
    assert (len(tokens.lines), len(time.lines)) == (2, 0)
    assert "not timed yet" in time.get_title()


def test_without_eps_it_has_a_speed_of_its_own(evidence):
    evidence.speeds["fourier_no_eps"] = 0.25
    for eps, speed in (("1e-06", 0.5), ("0.0", 0.25)):  # knobs of a collected row are text
        assert evidence.speed(SimpleNamespace(attention="fourier", settings={"eps": eps})) == speed


def test_softmax_alone_has_a_picture_too(evidence):
    """The first lines of a file that grows; a warning of matplotlib's would be an error here."""
    alone = picture_of(replace(evidence, rows=[row for row in evidence.rows if row.attention == "softmax"]))
    differences, tokens, time, shares = alone.figure.axes
    assert not differences.containers  # nothing to differ from it
    assert [len(axes.lines) for axes in (tokens, time, shares)] == [1, 0, 0]


def test_last_digits_do_not_make_a_picture_stale(evidence):
    """Another version of scipy computes them differently."""
    before = fingerprint(evidence)
    evidence.speeds["fourier"] += 1e-12
    assert fingerprint(evidence) == before
    evidence.speeds["fourier"] += 1e-3
    assert fingerprint(evidence) != before


def test_the_committed_pictures_are_of_the_committed_rows():
    pictures = REPOSITORY / "studies/real_data"
    for found in read_evidence():
        assert (pictures / f"{found.name}.png").is_file()
        svg = (pictures / f"{found.name}.svg").read_text(encoding="utf-8")
        assert fingerprint(found) in svg, "stale: run `make studies`"

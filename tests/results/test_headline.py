"""README's table: its perplexities, differences and shares, worked out by hand."""

import json

import pytest
from synthetic_runs import write_run

from fourierformer.results import collect
from fourierformer.results.documents import headline
from fourierformer.results.headline import findings
from fourierformer.results.measured import write_measured


@pytest.fixture
def folder(tmp_path):
    """Softmax at 100, `fourier_matched` at 90, 80 and 70, with eps = 0 `fourier` at 300, which no run compares."""
    perplexities = {"softmax": [100, 100, 100], "fourier_matched": [90, 80, 70], "fourier": [300]}
    for attention, values in perplexities.items():
        for seed, ppl in enumerate(values, start=1):
            changes = {"results": {"test": {"overlapping": {"ppl": ppl, "tokens": 9, "context": 64, "stride": 8}}}}
            changes["settings"] = {"eps": 0.0} if attention == "fourier" else {}
            run = write_run(tmp_path / "runs", attention, seed, changes=changes)
            if attention == "fourier_matched":
                share = {"attended_share": 0.3 * seed}
                (run / "heads.json").write_text(json.dumps({"splits": {"test": {"layers": [share], "mean": share}}}))
    write_measured(collect(tmp_path / "runs"), tmp_path / "evidence_lm.csv")
    return tmp_path


def test_the_best_stands_first_with_its_difference_and_share(folder):
    ours, softmax, without = findings(folder)
    assert (ours.label, softmax.label, without.label) == ("fourier_matched", "softmax", "fourier")
    assert (ours.perplexity.mean, ours.relative.mean, ours.attended) == pytest.approx((80, -0.2, 0.6))
    # t = -20 / (10 / sqrt(3)) = -3.4641, p of two sides with 2 degrees of freedom = 0.0742; the only one with a p
    assert ours.p == pytest.approx(0.0742, abs=1e-4)
    assert (softmax.relative, softmax.p, softmax.attended) == (None, None, None)
    assert (without.relative.mean, without.p) == (2, None)  # the plan compares it with `fourier`, which is not there


def test_lines_and_origin(folder):
    header, _, ours, softmax, without, _, origin = headline(folder).splitlines()
    assert header.startswith("| attention | seeds |")
    # t(0.975, 2) sd / sqrt(3) = 4.3027 * 0.1 / sqrt(3) = 0.2484
    assert ours == "| fourier_matched | 3 | 80.00 ± 10.00 | -20.0% ± 24.8% | 0.074 | 60 % |"
    assert softmax == "| softmax | 3 | 100.00 ± 0.00 | - | - | - |"
    assert without == "| fourier | 1 | 300.00 | +200.0% | - | - |"
    assert origin.startswith("From `results/measured/evidence_lm.csv`: 7 runs")

"""README's table: its perplexities by learning rate and its shares, worked out by hand."""

import json

import pytest

from fourierformer.results import collect
from fourierformer.results.measured import write_measured
from studies.real_data.analyse import headline
from studies.real_data.headline import findings
from tests.helpers.synthetic_runs import write_run


def write(
    folder, name: str, attention: str, rate: float, perplexities: list[float], share: float | None = None
) -> None:
    for seed, ppl in enumerate(perplexities, start=1):
        changes = {"results": {"test": {"overlapping": {"ppl": ppl, "tokens": 9, "context": 64, "stride": 8}}}}
        changes |= {"experiment": name, "group": f"{name} {attention} {rate}"}
        changes["config"] = {"optim.lr": rate, "experiment_name": name}
        run = write_run(folder / name / f"{rate}", attention, seed, changes=changes)
        if share is not None:
            layer = {"attended_share": share * seed}
            (run / "heads.json").write_text(json.dumps({"splits": {"test": {"layers": [layer], "mean": layer}}}))


@pytest.fixture
def folder(tmp_path):
    """The plan had softmax at 1e-3, `fourier_matched` at 2e-3; the checks the other rate of each, and one run again."""
    write(tmp_path, "evidence_lm", "softmax", 1e-3, [100, 100, 100], share=0.1)
    write(tmp_path, "evidence_lm", "fourier_matched", 2e-3, [90, 80, 70], share=0.3)
    write(tmp_path, "evidence_lm_checks", "softmax", 2e-3, [60, 70], share=0.5)
    write(tmp_path, "evidence_lm_checks", "softmax", 1e-3, [101])
    write(tmp_path, "evidence_lm_checks", "fourier_matched", 1e-3, [99])
    for name in ("evidence_lm", "evidence_lm_checks"):
        write_measured(collect(tmp_path / name), tmp_path / f"{name}.csv")
    return tmp_path


def test_the_best_at_any_rate_stands_first_with_the_share_there(folder):
    softmax, ours = findings(folder)
    assert (softmax.label, ours.label) == ("softmax", "fourier_matched")
    assert {rate: row.n for rate, row in softmax.by_rate.items()} == {1e-3: 3, 2e-3: 2}  # not the run made again
    assert softmax.attended == pytest.approx(0.75)  # (0.5 + 1) / 2 at 2e-3
    assert ours.attended == pytest.approx(0.6)


def test_lines_and_origin(folder):
    header, _, softmax, ours, _, origin = headline(folder).splitlines()
    assert header == "| attention | lr 0.001 | lr 0.002 | attended share |"
    assert softmax == "| softmax | 100.00 ± 0.00 (3) | 65.00 ± 7.07 (2) | 75 % |"
    assert ours == "| fourier_matched | 99.00 (1) | 80.00 ± 10.00 (3) | 60 % |"
    assert origin.startswith("From `studies/real_data/evidence_lm.csv` and `evidence_lm_checks.csv`: 9 runs")


def test_before_any_check_the_plan_stands_alone(folder):
    (folder / "evidence_lm_checks.csv").unlink()
    ours, softmax = findings(folder)
    assert (ours.label, list(ours.by_rate), list(softmax.by_rate)) == ("fourier_matched", [2e-3], [1e-3])

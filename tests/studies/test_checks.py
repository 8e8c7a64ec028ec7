"""The checks after the plan of docs/results.md: differences and labels worked out by hand."""

import pytest

from fourierformer.results import collect
from fourierformer.results.measured import write_measured
from studies.real_data.checks import check_table
from tests.helpers.synthetic_runs import write_run


def write(folder, name: str, attention: str, rate: float, perplexities: dict[int, float]) -> None:
    for seed, ppl in perplexities.items():
        changes = {"results": {"test": {"overlapping": {"ppl": ppl, "tokens": 9, "context": 64, "stride": 8}}}}
        changes |= {"experiment": name, "group": f"{name} {attention} {rate}"}
        changes["config"] = {"optim.lr": rate, "experiment_name": name}
        write_run(folder / name / f"{rate}", attention, seed, changes=changes)


@pytest.fixture
def folder(tmp_path):
    """The checks have `fourier_matched` at half its rate, softmax at twice its own, and one run of softmax again."""
    write(tmp_path, "evidence_lm", "softmax", 1e-3, {1: 100.0, 2: 102.0, 3: 104.0})
    write(tmp_path, "evidence_lm", "fourier_matched", 2e-3, {1: 90.0, 2: 90.0, 3: 90.0, 4: 90.0})
    write(tmp_path, "evidence_lm", "gaussian", 1e-3, {1: 100.0})  # no check has it
    write(tmp_path, "evidence_lm_checks", "softmax", 1e-3, {3: 104.5})
    write(tmp_path, "evidence_lm_checks", "softmax", 2e-3, {1: 80.0})
    write(tmp_path, "evidence_lm_checks", "fourier_matched", 1e-3, {1: 99.0, 2: 100.0, 3: 101.0})
    for name in ("evidence_lm", "evidence_lm_checks"):
        write_measured(collect(tmp_path / name), tmp_path / f"{name}.csv")
    return tmp_path


def test_attentions_at_one_rate_then_rates_of_one_attention(folder):
    slow, fast, softmax, own, again = check_table(folder).body
    # -1, -2 and -3: t(0.975, 2) sd / sqrt(3) = 4.3027 * 1 / sqrt(3) = 2.484; t = -3.4641 has p = 0.0742
    assert slow[:3] == ["fourier_matched lr=0.001 - softmax lr=0.001", "3", "-2.00 ± 2.48"]
    assert slow[4] == "p = 0.074"
    assert fast == ["fourier_matched lr=0.002 - softmax lr=0.002", "1", "+10.00", "+12.5%", "-"]
    assert softmax[:3] == ["softmax lr=0.002 - softmax lr=0.001", "1", "-20.00"]
    assert own[:3] == ["fourier_matched lr=0.002 - fourier_matched lr=0.001", "3", "-10.00 ± 2.48"]  # -9, -10 and -11
    assert again == ["softmax lr=0.001 again - softmax lr=0.001", "1", "+0.50", "+0.5%", "-"]


def test_without_rows_there_is_no_table(tmp_path):
    assert check_table(tmp_path) is None

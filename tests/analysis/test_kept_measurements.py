"""Measurements of a run under attack are kept in its robustness.json."""

from types import SimpleNamespace

from fourierformer.analysis import robustness
from fourierformer.analysis.robustness import WORDS, Measurement, measured, saved


def test_two_processes_that_measure_one_run_keep_the_numbers_of_both(tmp_path, monkeypatch):
    parts, ignored = SimpleNamespace(), lambda *progress: None
    first, second = (
        Measurement(split="test", protocol="segment", limit=None, attack=WORDS, level=level) for level in (0.1, 0.2)
    )

    def measure(parts, wanted, on_progress) -> dict[str, float]:
        if wanted is first:  # the other process ends while this one measures
            measured(parts, tmp_path, 5, second, on_progress)
        return {"ppl": 100 * wanted.level}

    monkeypatch.setattr(robustness, "measure", measure)
    measured(parts, tmp_path, 5, first, ignored)
    assert sorted((entry["level"], entry["ppl"]) for entry in saved(tmp_path)) == [(0.1, 10), (0.2, 20)]
    assert [measured(parts, tmp_path, 5, one, ignored)[1] for one in (first, second)] == [True, True]

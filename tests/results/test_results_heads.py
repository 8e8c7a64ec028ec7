"""How much heads differ, as tables: mean and sd over seeds of what heads.json of each run says."""

import json

import pytest

from fourierformer.results import collect, comparison
from fourierformer.results.measured import read_measured, write_measured
from fourierformer.results.tables import head_tables
from studies.real_data.layers import layer_tables
from tests.helpers.synthetic_runs import write_run


def measured_run(root, attention: str, seed: int, distance: float) -> None:
    run = write_run(root, attention, seed)
    found = {
        "mean": {"head_distance": distance, "row_distance": 0.4, "output_distance": 3.0, "rank": 31.0},
        "sd": {"head_distance": 2.25},
        "sequences": 9,
    }
    (run / "heads.json").write_text(json.dumps({"schema": 1, "splits": {"test": found}}))


def test_heads_of_other_weights_than_the_results_are_named(tmp_path):
    """Measured when the run was interrupted; it went on to a better checkpoint."""
    for seed, step in ((1, 540), (2, 300)):
        run = write_run(tmp_path, "softmax", seed, changes={"best": {"step": 540, "valid_ppl": 60.0}})
        found = {"mean": {"head_distance": 6.0}, "sd": {"head_distance": 2.25}, "step": step}
        (run / "heads.json").write_text(json.dumps({"schema": 1, "splits": {"test": found}}))
    (table,) = head_tables(comparison(collect(tmp_path)))
    (note,) = (note for note in table.notes if "scripts/head_redundancy.py measures them again" in note)
    assert "softmax-s2" in note
    assert "step 300" in note


@pytest.mark.parametrize("through_a_file", [False, True])
def test_mean_and_sd_over_seeds(tmp_path, through_a_file):
    for seed in (1, 2, 3):
        measured_run(tmp_path / "runs", "softmax", seed, 6.0 + seed / 10)
        write_run(tmp_path / "runs", "fourier", seed)  # not looked at: no line
    runs = collect(tmp_path / "runs")
    if through_a_file:
        write_measured(runs, tmp_path / "all.csv")
        runs = read_measured(tmp_path / "all.csv")
    (table,) = head_tables(comparison(runs))
    (line,) = (dict(zip(table.header, line, strict=True)) for line in table.body)
    assert (line["attention"], line["split"], line["n"]) == ("softmax", "test", "3")
    assert line["distance of\nattention maps"] == "6.20 ± 0.10"
    assert line["its sd\nover layers"] == "2.25 ± 0.00"
    assert table.scale


def test_one_run_has_no_sd_over_seeds_and_what_one_of_two_lacks_is_a_dash(tmp_path):
    for attention, mean in (
        ("softmax", {"head_distance": 6.5}),
        ("fourier", {"head_distance": 5.5, "rank": 31.0, "attended_share": 0.25}),
    ):
        run = write_run(tmp_path, attention, 1)
        (run / "heads.json").write_text(
            json.dumps({"splits": {"valid": {"mean": mean, "sd": {"head_distance": None}}}})
        )
    (table,) = head_tables(comparison(collect(tmp_path)))
    assert table.header[4:] == ["distance of\nattention maps", "attended\nshare", "rank of\nthe maps"]
    assert table.body == [
        ["lm_tiny", "softmax", "valid", "1", "6.50", "-", "-"],
        ["lm_tiny", "fourier", "valid", "1", "5.50", "0.250", "31.000"],
    ]


@pytest.mark.parametrize("content", ["", "[1]", '{"splits": [1]}', '{"splits": {"test": {"mean": [1]}}}'])
def test_a_damaged_file_has_no_numbers(tmp_path, content):
    run = write_run(tmp_path, "softmax", 1)
    (run / "heads.json").write_text(content)
    tables = head_tables(comparison(collect(tmp_path)))
    assert {cell for table in tables for line in table.body for cell in line[4:]} <= {"-"}


@pytest.mark.parametrize("through_a_file", [False, True])
def test_radius_and_share_of_each_layer(tmp_path, through_a_file):
    """As means over seeds: the radius that was logged last, the share that was measured; 3e-30 is not rounded to 0."""
    for seed, radius in ((1, 2.0), (2, 3.0)):
        rows = [{"step": 1, "valid_ppl": 60.0, "radius/00": 9.0}, {"step": 2, "valid_ppl": 60.0, "radius/00": radius}]
        run = write_run(tmp_path / "runs", "fourier", seed, rows=rows)
        measured = {"layers": [{"attended_share": seed * 2e-30}], "mean": {"attended_share": seed * 2e-30}}
        (run / "heads.json").write_text(json.dumps({"schema": 1, "splits": {"test": measured}}))
        write_run(tmp_path / "runs", "softmax", seed)
    runs = collect(tmp_path / "runs")
    if through_a_file:
        write_measured(runs, tmp_path / "all.csv")
        runs = read_measured(tmp_path / "all.csv")
    (table,) = layer_tables(comparison(runs))
    assert table.header == ["attention", "quantity", "n", "layer 0"]
    assert table.body == [["fourier", "radius R", "2", "2.50"], ["fourier", "attended share", "2", "3e-30"]]

"""Model cards: their numbers are those of the runs, with the interval over seeds."""

import json

from fourierformer.results import collect
from fourierformer.results.card import model_card
from tests.helpers.synthetic_runs import write_run, write_vision_run


def test_a_card_has_the_numbers_with_their_interval_and_what_one_must_know(tmp_path):
    for seed, ppl in enumerate((60.0, 61.0, 62.0), start=1):
        write_run(tmp_path, "fourier", seed, ppl, changes={"notes": ["your data is not the paper's data"]})
    write_run(tmp_path, "softmax", 1, 90.0)
    run = next(run for run in collect(tmp_path) if run.field("attention") == "fourier" and run.field("seed") == 2)
    card = model_card(run, 540, {"name": "fourier", "radius": "paper", "eps": 1e-6}, "text-generation")
    # sd 1, three seeds: t = 4.303 at 95 % with two degrees of freedom, 4.303 / sqrt(3) = 2.48
    assert "| test segment | context 64, stride 64, 21,000 tokens scored | 61.00 | 61.00 ± 2.48 | 3 |" in card
    for fact in (
        "pipeline_tag: text-generation",
        "license: mit",
        "lm_tiny with fourier attention, on builtin_text",
        "1,234,567 parameters",
        "step 540",
        "radius=paper, eps=1e-06",
        "commit | 0123abcd",
        "your data is not the paper's data",
        "@inproceedings{nguyen2022fourierformer",
    ):
        assert fact in card, fact
    assert "90.00" not in card


def test_a_card_says_that_equal_seeds_have_an_interval_of_no_width(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path, "fourier", seed, 61.0)
    card = model_card(collect(tmp_path)[0], 540, {})
    assert "| test segment | context 64, stride 64, 21,000 tokens scored | 61.00 | 61.00 ± 0.00 | 3 |" in card


def test_a_command_with_a_bar_stays_in_its_cell(tmp_path):
    run = write_run(tmp_path, "fourier")
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps(meta | {"command": "python train_lm.py 'tracker.tags=[a|b]'"}))
    card = model_card(collect(tmp_path)[0], 540, {})
    (line,) = (line for line in card.splitlines() if line.startswith("| command"))
    assert line == r"| command | `python train_lm.py 'tracker.tags=[a\|b]'` |"


def test_a_card_of_one_seed_or_of_an_unfinished_run_claims_nothing(tmp_path):
    write_vision_run(tmp_path, seed=1, ema=True)
    (run,) = collect(tmp_path)
    card = model_card(run, 540, {})
    assert "| valid best | 360 images scored | 93.00 % | - | 1 |" in card
    assert "ema_last: averaged weights at the end of training" in card
    write_run(tmp_path / "other", state="interrupted")
    (run,) = collect(tmp_path / "other")
    card = model_card(run, 20, {})
    assert "not finished" in card
    assert "±" not in card


def test_a_card_says_which_weights_it_is_of_and_shows_no_number_of_others_as_theirs(tmp_path):
    write_run(tmp_path, changes={"best": {"step": 540, "valid_ppl": 58.0}})
    (run,) = collect(tmp_path)
    not_theirs = "These weights were not measured. The numbers are those of the run's best checkpoint:"
    best = model_card(run, 540, {})
    assert "The weights are those of step 540." in best
    assert not_theirs not in best
    last = model_card(run, 600, {}, last=True)
    assert "The weights are those of the last checkpoint, step 600." in last
    assert not_theirs in last
    assert not_theirs not in model_card(run, 540, {}, last=True)  # the best one is the last
    averaged = model_card(run, 540, {}, averaged=True)
    assert "The weights are the moving average of the weights in the best checkpoint, step 540." in averaged
    assert not_theirs in averaged


def test_a_card_of_an_image_classifier_has_the_numbers_of_its_own_weights(tmp_path):
    write_vision_run(tmp_path, ema=True)
    (run,) = collect(tmp_path)
    for options, own in (({}, "best"), ({"last": True}, "last"), ({"last": True, "averaged": True}, "ema last")):
        card = model_card(run, 540, {}, **options)
        assert [line.split(" | ")[0] for line in card.splitlines() if line.startswith("| valid")] == [f"| valid {own}"]
        assert "not measured" not in card
    assert "not measured. The numbers are those of other weights of the run" in model_card(run, 540, {}, averaged=True)


def test_a_card_has_all_seeds_though_a_number_was_written_in_two_ways_and_says_that_a_start_was_dirty(tmp_path):
    for seed, decay in ((1, 0), (2, 0), (3, 0.0)):
        config = {"optim.weight_decay": decay, "attention.name": "fourier"}
        changes = {"group": f"fourier{decay}", "config": config}
        run = write_run(tmp_path, "fourier", seed, 60.0 + seed, changes=changes)
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps(meta | {"earlier": [{"commit": "89ab", "dirty": True}]}))
    cards = [model_card(found, 540, {}) for found in collect(tmp_path)]
    assert all("| 62.00 ± 2.48 | 3 |" in card for card in cards)
    assert ["with uncommitted changes" in card for card in cards] == [False, False, True]


def test_a_card_of_a_run_that_was_set_aside_has_its_own_numbers(tmp_path):
    """Tables leave it out; exporting it is no mistake."""
    run = write_run(tmp_path, "fourier", 1, 58.0)
    run.rename(run.with_name(f"{run.name}.old-1"))
    (found,) = collect(tmp_path)
    assert "58.00" in model_card(found, 600, {})

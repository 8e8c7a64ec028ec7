"""How the runs of a sweep are told apart, on the console and in wandb."""

import re

from fourierformer.runs import train
from fourierformer.runs.job_names import expanded, names
from fourierformer.tracking import build_trackers
from tests.helpers.command_line import train_lm


def test_a_job_is_called_by_the_overrides_in_which_it_differs():
    overrides = ["debug=smoke", "attention=softmax,fourier", "optim.lr=1e-3,2e-3", "model.layers=2", "runs_root=/tmp/x"]
    assert [name.label for name in names(expanded(overrides))] == [
        "1/4 softmax lr=0.001",
        "2/4 softmax lr=0.002",
        "3/4 fourier lr=0.001",
        "4/4 fourier lr=0.002",
    ]
    assert [name.differs for name in names(expanded(overrides))] == ["lr=0.001", "lr=0.002"] * 2


def test_seeds_and_equal_last_parts_of_keys():
    labels = [
        name.label for name in names(expanded(["seed=range(1,3)", "optim.eps=1e-8,1e-6", "attention.eps=0,1e-6"]))
    ]
    assert labels[0] == "1/8 seed=1 optim.eps=1e-08 attention.eps=0"
    assert labels[-1] == "8/8 seed=2 optim.eps=1e-06 attention.eps=1e-06"


def test_a_later_override_counts_and_a_single_job_has_its_number_only():
    (name,) = names(expanded(["attention=softmax,fourier", "attention=fourier"]))
    assert (name.label, name.differs) == ("1/1", "")


def wandb_settings(monkeypatch, *overrides) -> list[dict]:
    """What wandb would be given by the runs of a command."""
    return settings("wandb", monkeypatch, *overrides)


def settings(tracker: str, monkeypatch, *overrides) -> list[dict]:
    given = []

    def without_trackers(metrics, **others):
        given.append(others[tracker])
        return build_trackers(metrics, **others | {tracker: None})

    monkeypatch.setattr(train, "build_trackers", without_trackers)
    assert train_lm(*overrides) == 0
    return given


def test_wandb_shows_what_differs_the_data_and_the_count_of_tokens(smoke, tmp_path, monkeypatch):
    command = (*smoke, "tracker=wandb", "tracker.mode=offline", f"runs_root={tmp_path}")
    first, second = wandb_settings(monkeypatch, "-m", *command, "optim.lr=1e-3,2e-3")
    assert (first["name"], second["name"]) == ("lm_tiny-softmax-s1 lr=0.001", "lm_tiny-softmax-s1 lr=0.002")
    for given in (first, second):
        assert re.match("wikitext2/lm_tiny/softmax/[0-9a-f]{8} expect=null ", given["group"])
    assert first["group"].endswith(" lr=0.001")
    assert second["group"].endswith(" lr=0.002")
    unit, after = first["samples"]
    assert (unit, after(3)) == ("tokens", 3 * 2 * 8)  # steps, sequences, length: debug=smoke and MODEL
    (single,) = wandb_settings(monkeypatch, *command, "optim.lr=3e-3")
    assert single["name"] == "lm_tiny-softmax-s1 expect=null dim=16 inner=16 layers=1 length=8 lr=0.003"


def test_all_seeds_of_a_configuration_have_one_group_whatever_command_trains_them(smoke, tmp_path, monkeypatch):
    command = ("tracker=wandb", "tracker.mode=offline", f"runs_root={tmp_path}", *smoke)
    first, second = wandb_settings(monkeypatch, "-m", *command, "optim.lr=2e-3", "global_batch_size=4", "seed=1,2")
    (third,) = wandb_settings(monkeypatch, "seed=3", "global_batch_size=4", "optim.lr=0.002", *command)
    assert first["group"] == second["group"] == third["group"]
    assert "global_batch_size=4" in third["group"]


def test_in_trackio_a_run_has_one_name_however_it_is_spelled_until_it_begins_anew(smoke, tmp_path, monkeypatch):
    command = (*smoke, "tracker=trackio", f"runs_root={tmp_path}")
    names = [
        settings("trackio", monkeypatch, *command, *more)[0]["name"]
        for more in ((), ("evaluation.protocols=[segment,sliding]",), ("fresh=true",))
    ]
    assert re.fullmatch("lm_tiny-softmax-s1 [0-9a-f]{8} [0-9a-f]{4}", names[0])
    assert names[0] == names[1] != names[2]
    assert names[0][:-5] == names[2][:-5]

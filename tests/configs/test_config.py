"""The strict check, the identity of a run, and every file in configs/."""

import inspect
from typing import Literal

import pytest
import yaml
from hydra import compose, initialize_config_dir

from fourierformer import attention, checking
from fourierformer import config as configs
from fourierformer.errors import SetupError
from fourierformer.runs.spec import read_spec, stored_spec, task_of, with_changes
from tests.helpers.command_line import CONFIGS, REPOSITORY, one_job, spec_of


def composed(*overrides: str, script: str = "train_lm") -> dict:
    return spec_of(*overrides, script=script).values


def script_of(text: str) -> str:
    """The script of a config file: named in its command, or recognised by keys that only images have."""
    vision = ("train_vit.py", "image_size:", "mean:", "randaugment:", "pool:")
    return "train_vit" if any(word in text for word in vision) else "train_lm"


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def texts(group: str) -> list[tuple[str, str]]:
    return [(name, text_of(group, name)) for name in names(group)]


def text_of(group: str, name: str) -> str:
    return (CONFIGS / group / f"{name}.yaml").read_text()


# -- every file of configs/ -----------------------------------------------------------------------------------------

# what a group of another task than train_lm.py's usual one is chosen with, by a key that only it has
WITH = {
    "mask_rate:": ["experiment=builtin_mlm"],
    **{key: ["experiment=builtin_seq2seq"] for key in ("source_length:", "pairs: dates", "debug=smoke_seq2seq")},
    **{key: ["experiment=recall"] for key in ("layout:", "keys: vectors", "recall_1x64", "debug=smoke_recall")},
    **{key: ["experiment=regression"] for key in ("smooth_in:", "projections:", "debug=smoke_regression")},
}


def bundles() -> list[tuple[str, ...]]:
    """The script, what its task is chosen with, and a file of each group: a composition takes a fifth of a second, so
    files of different groups share it."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for group in ("debug", "data", "augment", "model", "optim", "schedule", "trainer", "tracker"):
        for name in names(group):  # tests below compose those of experiment and of sweep
            text = text_of(group, name)
            task = next((chosen for key, chosen in WITH.items() if key in text), [])
            known = found.setdefault((script_of(text), *task), [])
            free = next((bundle for bundle in known if group not in bundle), None)
            if free is None:
                known.append(free := {})
            free[group] = f"{group}={name}"
    return [(*first, *bundle.values()) for first, several in found.items() for bundle in several]


@pytest.mark.parametrize("words", bundles(), ids=" ".join)
def test_every_file_composes_and_fits_the_schema(words):
    script, *overrides = words
    assert_names_arrive(composed(*overrides, script=script), overrides)


@pytest.mark.full("one file is like another, and the contract reads them")
@pytest.mark.parametrize("name", names("attention"))
def test_every_attention_composes_and_fits_the_schema(name):
    only_images = name not in attention.available(causal=True, grid=False)
    choice = f"attention={name}"
    assert_names_arrive(composed(choice, script="train_vit" if only_images else "train_lm"), [choice])


def assert_names_arrive(values: dict, overrides: list[str]) -> None:
    for group, name in (override.split("=") for override in overrides):
        if group in ("data", "augment", "model", "attention", "optim", "tracker"):
            assert values[group]["name"] == name


def plain(text: str) -> dict:
    """What a file of @package _global_ sets itself, as {"trainer.steps": 4}."""
    from omegaconf import OmegaConf  # its numbers are read as Hydra reads them: 2e-3 is one

    values = OmegaConf.to_container(OmegaConf.create(text))
    return dict(configs.flatten({k: v for k, v in values.items() if k not in ("defaults", "hydra")}))


@pytest.mark.parametrize(("name", "text"), texts("experiment"))
def test_what_an_experiment_sets_arrives(name, text):
    """Without `_self_` first in train_lm.yaml the values would be overridden silently."""
    values = dict(configs.flatten(composed(f"experiment={name}", script=script_of(text))))
    for key, value in plain(text).items():
        assert values[key] == value, key
    assert values["experiment_name"] == name


def debug_of(text: str) -> str:
    task = next((task for task in ("seq2seq", "recall", "regression") if f"task: {task}" in text), None)
    return f"smoke_{task}" if task else "smoke_vit" if script_of(text) == "train_vit" else "smoke"


def first_of_each_debug() -> list:
    """The other experiments join the same defaults list, and compose in the full tier."""
    seen, cases = set(), []
    for name, text in texts("experiment"):
        marks = pytest.mark.full("one experiment is like another") if debug_of(text) in seen else ()
        cases.append(pytest.param(name, text, marks=marks))
        seen.add(debug_of(text))
    return cases


@pytest.mark.parametrize(("name", "text"), first_of_each_debug())
def test_debug_wins_over_every_experiment_and_the_command_line_over_both(name, text):
    debug, ours = debug_of(text), {"trainer.steps": 7, "optim.lr": 0.5, "seed": 9}
    overrides = [f"experiment={name}", f"debug={debug}", *(f"{key}={value}" for key, value in ours.items())]
    values = dict(configs.flatten(composed(*overrides, script=script_of(text))))
    for key, value in (plain(text_of("debug", debug)) | ours).items():
        assert values[key] == value, key
    assert values["is_debug"] is True


@pytest.mark.parametrize(
    ("script", "override", "way_out"),
    [
        ("train_lm", "model=deit_tiny", r"model=deit_tiny .* is not for task=language: python train_vit.py"),
        ("train_vit", "model=lm_tiny", r"model=lm_tiny .* is not for task=vision: python train_lm.py"),
        ("train_vit", "experiment=wt103_small", r"model=lm_small .* is not for task=vision: python train_lm.py"),
        ("train_vit", "data=wikitext2", r"data=wikitext2 .* is not for task=vision"),
    ],
)
def test_what_is_made_for_the_other_script_is_named(script, override, way_out):
    with pytest.raises(SetupError, match=way_out):
        composed(override, script=script)


@pytest.mark.parametrize(("name", "text"), texts("experiment") + texts("sweep"))
def test_a_header_has_the_command(name, text):
    header = [line for line in text.splitlines() if line.startswith("#")]
    script = f"{script_of(text)}.py"
    command = f"python {script}" if name in ("builtin", "builtin_vit") else f"={name}"
    assert any(script in line and command in line for line in header)


@pytest.mark.parametrize("name", names("sweep"))
def test_a_sweep_is_a_multirun(name):
    script = script_of(text_of("sweep", name))
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        hydra = compose(script, [f"sweep={name}"], return_hydra_config=True).hydra
    assert hydra.mode.name == "MULTIRUN"
    assert hydra.sweeper.params
    first = one_job([f"{key}={choices}" for key, choices in hydra.sweeper.params.items()])
    composed(f"sweep={name}", *first, script=script)


def test_every_group_describes_its_files():
    for path in CONFIGS.rglob("*.yaml"):
        assert path.read_text().startswith("#"), path


def test_a_config_stored_before_a_key_existed_is_read_with_its_default(tmp_path):
    spec = read_spec(composed(script="train_vit"))
    older = {**spec.values, "data": {key: value for key, value in spec.values["data"].items() if key != "in_memory"}}
    (tmp_path / "config.yaml").write_text(configs.to_yaml(older))
    stored = stored_spec(tmp_path)
    assert stored == spec
    assert stored.hash == spec.hash


KNOBS = {"attention.allow_negative": "fourier", "attention.factorized": "aft_local", "attention.gate": "aft_local"}


@pytest.mark.parametrize("later", configs.ADDED_LATER)
def test_a_key_that_came_later_leaves_earlier_runs_their_hash(later, tmp_path):
    """An earlier run has it neither in its config nor in its hash; it reads as today's default."""
    spec = read_spec(composed(f"attention={KNOBS.get(later, 'softmax')}"))
    section, _, key = later.rpartition(".")
    part = spec.values[section] if section else spec.values
    older, changed = {k: v for k, v in part.items() if k != key}, part | {key: "something else"}
    assert older.keys() == part.keys() - {key} != part.keys()
    older, changed = (spec.values | {section: values} if section else values for values in (older, changed))
    (tmp_path / "config.yaml").write_text(configs.to_yaml(older))
    assert stored_spec(tmp_path) == spec
    assert configs.config_hash(older) == spec.hash != configs.config_hash(changed)


def test_swapped_words_name_another_run_that_is_measured_with_them_too():
    swapped = read_spec(composed("evaluation.word_swap=0.025"))
    assert swapped.hash != read_spec(composed()).hash
    assert task_of(swapped).measured_at_end(swapped)[:4] == [
        *(("valid", "segment"), ("valid", "sliding"), ("valid", "segment_swapped"), ("valid", "sliding_swapped"))
    ]


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ("data=builtin_bytes", "data=builtin_bytes is read as bytes"),
        ("experiment=builtin_pixels", "data=builtin_pixels is read as pixels"),
        ("experiment=builtin_mlm", "words are swapped for models that predict the next word"),
        ("experiment=builtin_seq2seq", "answers are read letter by letter"),
        ("experiment=recall", "task=recall has no text"),
        ("experiment=regression", "task=regression has no text"),
    ],
)
def test_words_are_swapped_in_language_models_of_words_only(chosen, reason):
    with pytest.raises(SetupError, match=f"evaluation.word_swap=0.1, but {reason}: evaluation.word_swap=0"):
        read_spec(composed(chosen, "evaluation.word_swap=0.1"))


# -- identity -------------------------------------------------------------------------------------------------------

VISION_CONVENIENCE = {"evaluation.images_per_forward": 1, "data.workers": 3, "data.in_memory": True}
CONVENIENCE = {
    "runs_root": "x", "run_dir": "x", "fresh": True, "dry_run": True, "tracker.name": "wandb", "tracker.project": "x",
    "tracker.entity": "x", "tracker.mode": "offline", "tracker.tags": ["x"], "tracker.artifact": True,
    "evaluation.splits": ["test"], "evaluation.protocols": [],
    "evaluation.tokens_per_forward": 1, "data.root": "x", "data.cache": "x", "trainer.device": "cpu",
    "trainer.compile": "never", "trainer.save_every": 3, "trainer.log_every": 3, "trainer.keep_checkpoints": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("script", "convenience"),
    [
        ("train_lm", CONVENIENCE),
        ("train_vit", {k: v for k, v in CONVENIENCE.items() if k[:5] != "evalu"} | VISION_CONVENIENCE),
    ],
)
def test_every_key_but_those_of_convenience_names_another_run(script, convenience):
    values = composed(script=script)
    original = configs.config_hash(values)
    keys = dict(configs.flatten(values))
    assert set(convenience) <= set(keys)
    for key in keys:
        changed = {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}
        group, _, name = key.rpartition(".")
        (changed[group] if group else changed)[name] = convenience.get(key, "something else")
        assert (configs.config_hash(changed) == original) == (key in convenience), key
        assert bool(configs.differences(values, changed)) == (key not in convenience), key


def test_a_group_is_the_config_without_the_seed():
    one, two, other = composed("seed=1"), composed("seed=2"), composed("seed=2", "optim.lr=1")
    assert configs.config_hash(one) != configs.config_hash(two)
    assert configs.config_hash(one, seed=False) == configs.config_hash(two, seed=False)
    assert configs.config_hash(two, seed=False) != configs.config_hash(other, seed=False)


def test_a_default_spelled_out_is_the_same_run():
    values = composed()
    spelled = composed(f"seed={values['seed']}", f"optim.lr={values['optim']['lr']}")
    assert configs.run_directory(values) == configs.run_directory(spelled)
    assert str(configs.run_directory(composed("run_dir=/there"))) == "/there"


def test_a_config_survives_its_file(tmp_path):
    values = composed("experiment=wt103_small")
    (tmp_path / "config.yaml").write_text(configs.to_yaml(values))
    assert read_spec(configs.from_yaml(tmp_path / "config.yaml")).values == values


def test_a_folder_that_is_no_run_is_told_from_the_run_that_was_meant(tmp_path):
    run = tmp_path / "lm_tiny-fourier-s1-0a1b2c3d"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(configs.to_yaml(composed()))
    for meant, message in {
        "lm_tiny-fourier-s1": f"there is no such directory .did you mean {run}.",
        "elsewhere/run": "there is no such directory$",
        ".": f"it has no config.yaml, but holds runs: name one, as {run}$",
        f"{run.name}/config.yaml": "it is a file$",
        f"{run.name}/checkpoints": "it has no config.yaml$",
    }.items():
        with pytest.raises(SetupError, match=f"is not a run directory: {message}"):
            configs.from_yaml(tmp_path / meant / "config.yaml")


# -- the check itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "fitting", "others"),
    [
        (int, [1, -1], [1.0, "1", True, None]),
        (float, [1, 1.5], ["1", True, None]),
        (bool, [True], [1, "true", None]),
        (str, ["a"], [1, None]),
        (int | None, [1, None], ["a", 1.5]),
        (list[int], [[], [1]], [1, ["a"], None]),
        (dict[str, int] | None, [{"a": 1}, None], [{"a": "b"}, [1]]),
        (Literal["a", "b"], ["a"], ["c", None]),
        (float | Literal["matched"], [0.5, "matched"], ["other", None]),
        (inspect.Parameter.empty, [1, None, "a"], []),
    ],
)
def test_types(hint, fitting, others):
    for value in fitting:
        checking.check_config({"key": value}, {"": {"key": hint}})
    for value in others:
        with pytest.raises(SetupError, match=r"key=.*: expected"):
            checking.check_config({"key": value}, {"": {"key": hint}})


def test_a_group_that_is_a_value_is_named():
    with pytest.raises(SetupError, match="'optim' must be a config group, got 3"):
        checking.check_config({"optim": 3}, {"": {}, "optim": {}})


def test_configs_have_no_folders_of_one_machine():
    for path in CONFIGS.rglob("*.yaml"):
        assert str(REPOSITORY) not in path.read_text()
        yaml.compose(path.read_text())


def test_with_changes_changes_fields_values_and_hash_together():
    spec, asked = (spec_of(f"optim.lr={rate}") for rate in (0.25, 0.5))
    changed = with_changes(spec, optim={"lr": 0.5}, trainer={"device": "cpu"})
    assert changed.optim.lr == changed.values["optim"]["lr"] == 0.5
    assert (changed.hash, changed.group, changed.directory) == (asked.hash, asked.group, asked.directory)
    assert spec.values["optim"]["lr"] == spec.optim.lr == 0.25
    assert with_changes(spec, trainer={"device": "cpu"}).hash == spec.hash  # where it runs is not part of a hash
    with pytest.raises(SetupError, match=r"optim\.lr"):
        with_changes(spec, optim={"lr": -1.0})

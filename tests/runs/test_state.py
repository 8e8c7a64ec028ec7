"""What a run directory holds for a config is decided in one place: new, resumes, done, or another run."""

import pytest
from hydra import compose, initialize_config_dir

from fourierformer.config import to_yaml
from fourierformer.errors import SetupError
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.spec import read_command
from fourierformer.runs.state import state_of
from tests.helpers.command_line import CONFIGS, MODEL

MEASURED = {"valid": {"segment": {"ppl": 2.0}}}


def spec_of(root, *overrides):
    arguments = [*MODEL, "data=builtin_text", "trainer.steps=1000", "evaluation.splits=[valid]", f"runs_root={root}"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return read_command(compose("train_lm", [*arguments, "evaluation.protocols=[segment]", *overrides]))


@pytest.fixture
def spec(tmp_path):
    return spec_of(tmp_path)


@pytest.fixture
def begun(spec) -> RunDirectory:
    """A run that was killed before its first checkpoint."""
    directory = RunDirectory(spec.directory)
    directory.create()
    directory.write(directory.config, to_yaml(spec.values))
    return directory


@pytest.fixture
def stopped(begun) -> RunDirectory:
    """A run that was killed after the checkpoint of step 600."""
    (begun.checkpoints / "step_00000400").mkdir(parents=True)
    (begun.checkpoints / "step_00000600").mkdir()
    (begun.checkpoints / "step_00000800.tmp").mkdir()  # it was writing this one
    begun.write_status("running", step=790, steps=1000)
    return begun


@pytest.fixture
def ended(stopped) -> RunDirectory:
    stopped.write_status("completed", step=1000, steps=1000)
    stopped.write(stopped.summary, {"results": MEASURED})
    return stopped


def test_without_a_config_it_is_new(spec):
    state = state_of(RunDirectory(spec.directory), spec)
    assert state.word == "new"
    assert state.sentence == f"begins {spec.directory}: config {spec.hash}"


def test_without_a_checkpoint_it_begins_again(begun, spec):
    state = state_of(begun, spec)
    assert state.word == "resumes"
    assert "from the beginning, it has no checkpoint yet: same config" in state.sentence


def test_it_resumes_at_its_newest_complete_checkpoint_and_gives_the_reason(stopped, spec):
    state = state_of(stopped, spec)
    assert state.word == "resumes"
    reason = f"at step 600 of 1,000: same config {spec.hash} (fresh=true starts over)"
    assert state.sentence == f"resumes {spec.directory} {reason}"


def test_completed_and_measured_is_done(ended, spec):
    state = state_of(ended, spec)
    assert state.word == "done"
    assert state.sentence.startswith(f"already done: {spec.directory}: same config {spec.hash}")


@pytest.mark.parametrize("key", ["trainer.device=cpu", "trainer.log_every=7", "evaluation.tokens_per_forward=64"])
def test_keys_that_compute_nothing_do_not_matter(ended, tmp_path, key):
    assert state_of(ended, spec_of(tmp_path, key)).word == "done"


def test_a_measurement_that_is_missing_is_the_reason_to_go_on(ended, tmp_path):
    state = state_of(ended, spec_of(tmp_path, "evaluation.protocols=[segment,sliding]"))
    assert state.word == "resumes"
    assert "to measure valid/sliding: same config" in state.sentence


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "diverged"])
def test_a_summary_alone_does_not_make_it_done(ended, spec, status):
    ended.write_status(status)
    assert state_of(ended, spec).word == "resumes"


@pytest.mark.parametrize("file", ["summary", "status"])
def test_a_damaged_file_is_named_and_not_believed(ended, spec, file):
    path = getattr(ended, file)
    path.write_text('{"state": "comp')
    state = state_of(ended, spec)
    assert state.word == "resumes"
    first, last = state.sentence.splitlines()
    assert str(path) in first
    assert first.endswith("This run writes it again.")
    assert last.startswith("resumes ")


def test_a_config_that_was_edited_is_named_as_such(ended, spec):
    ended.write(ended.config, to_yaml(spec.values | {"global_batch_size": 1}))
    state = state_of(ended, spec)
    assert state.word == "another run"
    assert f"another config: global_batch_size: 1 -> {spec.global_batch_size}. " in state.sentence
    assert "config.yaml was changed: restore that, or fresh=true" in state.sentence


def test_another_config_is_another_run_with_its_differences(ended, tmp_path):
    state = state_of(ended, spec_of(tmp_path, "seed=2", f"run_dir={ended.path}"))
    assert state.word == "another run"
    assert "another config: seed: 1 -> 2. " in state.sentence
    assert "Choose another run_dir=, or fresh=true" in state.sentence


@pytest.mark.parametrize("finished", [True, False])
def test_other_data_is_refused_whether_it_is_done_or_not(ended, spec, monkeypatch, finished):
    ended.write(ended.meta, {"data_fingerprint": "aaaa"})
    if not finished:
        ended.summary.unlink()
    monkeypatch.setattr("fourierformer.tasks.language.Language.fingerprint", lambda *_: "bbbb")
    with pytest.raises(SetupError, match="was trained on other data: its fingerprint is aaaa"):
        state_of(ended, spec)


def test_deciding_changes_no_file(ended, spec):
    before = {path: path.read_bytes() for path in ended.path.rglob("*") if path.is_file()}
    state_of(ended, spec)
    assert {path: path.read_bytes() for path in ended.path.rglob("*") if path.is_file()} == before

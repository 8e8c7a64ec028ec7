"""Where results come from: what is said of code that may have changed since."""

import shlex
import subprocess

import pytest

from fourierformer import provenance
from fourierformer.provenance import code_since, command, commit_and_command, without_folders, without_secrets


def git(folder, *arguments) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """One commit with a package of two files and a document."""
    git(tmp_path, "init", "-q")
    (tmp_path / "fourierformer").mkdir()
    for name in ("fourierformer/one.py", "fourierformer/two.py", "README.md"):
        (tmp_path / name).write_text("before\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    return tmp_path


def test_changes_of_the_package_since_a_run_are_said(repository):
    meta = {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}
    (repository / "README.md").write_text("after\n")
    assert code_since(meta) is None
    (repository / "fourierformer/one.py").write_text("after\n")
    assert code_since(meta) == "1 file of fourierformer/ changed since then"
    (repository / "fourierformer/two.py").write_text("after\n")
    git(repository, "commit", "-qam", "second")
    assert code_since(meta) == "2 files of fourierformer/ changed since then"
    assert code_since(meta | {"dirty": True}) == "trained with uncommitted changes"


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"commit": "0123456789" * 4, "dirty": False}, "0123456"),
        ({"commit": "0123456789" * 4, "dirty": True}, "0123456+"),
        ({"commit": None, "dirty": None}, "unknown"),
    ],
)
def test_a_number_that_is_measured_later_says_whether_its_commit_is_all_of_the_code(facts, shown, monkeypatch):
    monkeypatch.setattr(provenance, "git_state", lambda: (facts, None))
    assert commit_and_command()["commit"] == shown


@pytest.mark.parametrize("meta", [{}, {"commit": None, "dirty": None}, {"commit": "0" * 40, "dirty": False}])
def test_nothing_is_said_of_an_unknown_commit(repository, meta):
    assert code_since(meta) is None


@pytest.mark.parametrize("commit", ["--output={}", "--output={}\n", "HEAD", ["--output={}"], 40 * "g"])
def test_a_commit_from_a_file_is_no_option_of_git(repository, tmp_path_factory, commit):
    victim = tmp_path_factory.mktemp("elsewhere") / "victim"
    victim.write_text("text of another program")
    (repository / "fourierformer/one.py").write_text("after\n")
    planted = [commit[0].format(victim)] if isinstance(commit, list) else commit.format(victim)
    assert code_since({"commit": planted, "dirty": False}) is None
    assert victim.read_text() == "text of another program"


@pytest.mark.parametrize(
    ("word", "masked"),
    [
        ("+hydra.job.env_set.WANDB_API_KEY=abc", "+hydra.job.env_set.WANDB_API_KEY=***"),
        ("++env.HF_TOKEN='a b'", "++env.HF_TOKEN=***"),
        ("--password=abc=def", "--password=***"),
        ("+a.client_secret=a,b", "+a.client_secret=***"),
        ("+env={API_KEY: abc]def}", "+env={API_KEY: ***}"),
        ("+env={HF_TOKEN: a'b}", "+env={HF_TOKEN: ***}"),
        ('setup=["export A_KEY=\\"abc\\""]', 'setup=["export A_KEY=***""]'),
        ("++attention.keys_per_token=4", "++attention.keys_per_token=4"),
        (
            'hydra.launcher.setup=["export WANDB_API_KEY=abc123",ls]',
            'hydra.launcher.setup=["export WANDB_API_KEY=***",ls]',
        ),
        ("+hydra.job.env_set={HF_TOKEN: hf_a b, X: 1}", "+hydra.job.env_set={HF_TOKEN: ***, X: 1}"),
        (
            "+hydra.job.env_set={A_KEY: abc, B: 1, C_TOKEN: 'a, b'}",
            "+hydra.job.env_set={A_KEY: ***, B: 1, C_TOKEN: ***}",
        ),
        *(
            (word, word)
            for word in (
                *("attention.keys_per_token=16", "evaluation.max_tokens=100", "model.pool=class_token"),
                *("data.previous_token=false", "data={previous_token: false}"),
            )
        ),
    ],
)
def test_secrets_of_a_command_line_are_masked(word, masked, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train_lm.py", word, "seed=1"])
    text = shlex.join(["python", "train_lm.py", masked, "seed=1"])
    assert command() == text
    unmasked = shlex.join(["python", "train_lm.py", word, "seed=1"])  # as earlier versions stored it
    assert without_secrets(unmasked) == text
    assert without_folders(unmasked) == text


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/me/runs/evidence", "evidence"),
        ("/home/me/runs/evidence/", "evidence"),  # as the tab key writes it
        ("data.root=/data/wikitext-103/", "data.root=wikitext-103"),
        ('data.root="/home/me/my data"', 'data.root="my data"'),
        ('data.root="/home/me/my data/"', 'data.root="my data"'),
        ("/home/me/runs//", "runs"),
        ("runs/evidence/", "runs/evidence/"),  # not of this machine alone
        ("hydra.searchpath=[file:///home/me/conf,/data/x/]", "hydra.searchpath=[file://conf,x]"),
        ("a={b: /home/me/c, d: 1/255}", "a={b: c, d: 1/255}"),
        ("a=[pkg://foo.bar/conf,https://host/a/b]", "a=[pkg://foo.bar/conf,https://host/a/b]"),
        ("hydra.run.dir=/data/me/${now:%Y}", "hydra.run.dir=${now:%Y}"),
        ("runs_root=/home/me/[x]/runs", "runs_root=runs"),
        ("/home/me/a{b}/run", "run"),
        ("data.root=/home/me/it's", "data.root=it's"),
        ("1/255", "1/255"),
    ],
)
def test_folders_of_this_machine_are_cut_to_their_last_part(word, kept):
    assert without_folders(shlex.join(["python", "x.py", word])) == shlex.join(["python", "x.py", kept])

"""Masked words and encoder-decoders through the whole path: train, table, resume, measure again, answer, plan."""

import json
import shutil
import sys

import pytest
import torch

import fourierformer
from fourierformer.errors import SetupError
from fourierformer.results import collect, comparison, render_text
from fourierformer.runs.parts import open_run
from fourierformer.tasks import task_named
from tests.helpers.command_line import REPOSITORY, only_run, rows, train_lm

SMALL = ("attention=softmax", "model.layers=1", "model.dim=16", "model.heads=2", "model.inner=16")
MASKED = ("experiment=builtin_mlm", "debug=smoke", "model.length=8", *SMALL)
SEQ2SEQ = ("experiment=builtin_seq2seq", "debug=smoke_seq2seq", "cross_attention=linear_elu", *SMALL)


RECALL = (
    *("experiment=recall", "debug=smoke_recall", "attention=softmax", "model.dim=16", "model.heads=2"),
    *("data.length=32", "data.pairs=8", "data.queries=null", "data.held_out=200"),
)


REGRESSION = ("experiment=regression", "debug=smoke_regression", "attention=gaussian", "data.held_out=60")


@pytest.fixture(scope="module", params=["masked", "seq2seq", "recall", "regression"])
def trained(request, tmp_path_factory, small_text):
    """(overrides, runs_root, its only run)"""
    overrides = {
        "masked": (*MASKED, *small_text),
        "seq2seq": (*SEQ2SEQ, "data.held_out=40"),
        "recall": RECALL,
        "regression": REGRESSION,
    }[request.param]
    root = tmp_path_factory.mktemp(request.param)
    tracker = ("tracker=wandb", "tracker.mode=offline") if request.param == "seq2seq" else ()  # a process each time
    assert train_lm(*overrides, f"runs_root={root}", *tracker) == 0
    return overrides, root, only_run(root)


def test_a_run_has_its_columns(trained):
    _, root, run = trained
    summary = json.loads((run / "summary.json").read_text())
    key, protocol = {
        "masked": ("masked_ppl", "segment"),
        "seq2seq": ("exact", "greedy"),
        "recall": ("recall", "1x"),
        "regression": ("mse", "queries"),
    }[summary["task"]]
    assert summary["primary"] == key
    found = summary["results"]["valid"][protocol][key]
    assert [row["step"] for row in rows(run) if f"valid_{key}" in row] == [2, 4]
    (row,) = comparison(collect(root))
    header, *_ = (line for line in render_text([row]).splitlines() if "train time" in line)
    assert f"{row.task.unit}/s" in header
    assert row.cell(("valid", protocol)).mean == found
    assert row.config.get("cross_attention") == {"exact": "linear_elu"}.get(key)


def test_a_resumed_run_ends_with_the_same_numbers(trained, tmp_path):
    overrides, root, run = trained
    shutil.copytree(root, tmp_path / "runs")
    copy = tmp_path / "runs" / run.relative_to(root)
    newest = sorted((copy / "checkpoints").glob("step_*"))[-1]
    assert newest.name.endswith("4")
    shutil.rmtree(newest)
    for name in ("summary.json", "status.json", "evaluation.json"):
        (copy / name).unlink()
    assert train_lm(*overrides, f"runs_root={tmp_path / 'runs'}") == 0
    assert rows(copy) == rows(run)
    before, after = (json.loads((path / "summary.json").read_text())["results"] for path in (run, copy))
    assert after == before


def test_it_is_measured_again_and_planned(trained, monkeypatch, capsys):
    overrides, root, run = trained
    found = json.loads((run / "summary.json").read_text())["results"]["valid"]
    (protocol,) = found.keys() - {"curve"}
    nll = f"(nll {found[protocol]['nll']:.4f})"
    assert script(monkeypatch, "evaluate", run, "--split", "valid", "--limit", "4096", "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert nll in out
    assert f"{protocol}, " in out
    assert "--limit" not in out
    assert script(monkeypatch, "evaluate", run, "--split", "valid", "--device", "cpu") == 0
    assert "--limit 4096 measures those" in capsys.readouterr().out  # the smoke config's evaluation.max_tokens
    assert script(monkeypatch, "evaluate", run, "--split", "test", "--protocol", "sliding", "--device", "cpu") == 2
    assert "is measured with --protocol " in capsys.readouterr().err
    assert train_lm(*overrides, f"runs_root={root}", "dry_run=true") == 0
    assert "(done)" in capsys.readouterr().out


def test_a_trained_encoder_decoder_answers(trained, monkeypatch, capsys):
    overrides, _, run = trained
    assert script(monkeypatch, "generate", run, "--prompt", "The 3rd of March, 1984", "--device", "cpu") == (
        0 if "data.held_out=40" in overrides else 2
    )
    output = capsys.readouterr()
    if "data.held_out=40" not in overrides:
        assert "is not a language model or an encoder-decoder" in output.err
        return
    assert len(output.out.strip()) <= 12
    for prompt, line in {
        "3 märz 1984": "not 'ä'",
        "": "the text is empty",
        "1" * 50: "50 characters: at most 39",
    }.items():
        assert script(monkeypatch, "generate", run, "--prompt", prompt, "--device", "cpu") == 2
        assert line in capsys.readouterr().err
    assert script(monkeypatch, "evaluate", run, "--data-root", "/x") == 2
    assert "is made when it is needed" in capsys.readouterr().err


def test_a_model_of_each_task_is_used_without_its_data(trained, monkeypatch):
    _, _, run = trained
    task = task_named(json.loads((run / "summary.json").read_text())["task"])
    with monkeypatch.context() as absent:
        absent.setattr(type(task), "load_data", None)
        model = fourierformer.load_run(run, "cpu")
    if task.name in ("recall", "regression"):
        return
    if task.name == "seq2seq":
        assert len(model.answer("The 3rd of March, 1984")) <= 12
        return
    filled = model.fill("word1 [mask] word2 [mask]").split()
    assert [filled[0], filled[2], len(filled)] == ["word1", "word2", 4]
    parts, _ = open_run(run, "cpu")
    ids = torch.tensor([[*parts.corpus.encode("word1"), parts.corpus.vocab_size, *parts.corpus.encode("word2")]])
    likeliest = parts.model.log_probabilities(ids, torch.tensor([1])).argmax(-1)
    assert model.fill("word1 [mask] word2") == f"word1 {parts.corpus.decode(likeliest)} word2"
    with pytest.raises(SetupError, match="the text has no gap"):
        model.fill("word1")
    with pytest.raises(SetupError, match="the text has 9 tokens: the model reads at most 8"):
        model.fill("[mask] " * 9)


def script(monkeypatch, name: str, *arguments: object) -> int:
    """`python scripts/NAME.py ...` in this process; its exit code."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
    sys.modules.pop(name, None)
    try:
        __import__(name).main()
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["attention=band"],
            "cross_attention=band: the decoder looks back at padded sources, and it cannot: its pattern",
        ),
        (["attention=fast_weight"], "attention=fast_weight: the encoder reads padded sources"),
        (["decoder_attention=image_2d"], "decoder_attention=image_2d: the decoder writes from left to right"),
        (["cross_attention=gausian"], "unknown attention 'gausian' (did you mean 'gaussian'?)"),
        (["attention=fourier", "attention.eps=-1"], "attention.eps=-1: must be at least 0"),
        (["debug=smoke"], "debug=smoke needs experiment=builtin; here: debug=smoke_seq2seq"),
        (["evaluation.protocols=[1x]"], "but answers are decoded greedily: evaluation.protocols=[greedy]"),
        (["model=lm_tiny"], "model=lm_tiny (of builtin_seq2seq) is not for task=seq2seq"),
        (["model=deit_tiny"], "is not for task=seq2seq: python train_vit.py trains vision models"),
        (["data=builtin_text"], "data=builtin_text (of builtin_seq2seq) is not for task=seq2seq"),
        (["data.held_out=40000"], "data.held_out=40000: must be at least 1 and less than 36,524"),
        (["model.source_length=20"], "model.source_length=37"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys, tmp_path, arguments, line):
    assert train_lm("experiment=builtin_seq2seq", *arguments, f"runs_root={tmp_path}") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert line in error


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["attention=lsh"], "LSH attention cannot estimate from given queries, keys and values: its keys are its own"),
        (["attention=grouped_query"], "it has projections of its own. attention=softmax, gaussian and fourier can"),
        (["data.rho=1"], "data.rho=1: correlations of data.dimension=4 features lie between -0.333 and 1"),
        (["trainer.steps=null", "trainer.epochs=3"], "has no epochs: give lengths in steps: trainer.steps="),
        (["debug=smoke"], "debug=smoke needs experiment=builtin; here: debug=smoke_regression"),
        (["evaluation.protocols=[1x]"], "those of task=regression are evaluation.protocols=[queries]"),
    ],
)
def test_a_regression_that_cannot_be_is_one_line(capsys, tmp_path, arguments, line):
    assert train_lm("experiment=regression", "attention=softmax", *arguments, f"runs_root={tmp_path}") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert line in error


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["attention=nystrom"], "attention 'nystrom' cannot be causal"),
        (["data.pairs=200"], "data.length=232, or data.pairs=80"),
        (["trainer.steps=null", "trainer.epochs=3"], "has no epochs: give lengths in steps: trainer.steps=300"),
        (["debug=smoke"], "debug=smoke needs experiment=builtin; here: debug=smoke_recall"),
        (["evaluation.protocols=[3x]"], "those of task=recall are evaluation.protocols=[1x,2x,4x]"),
        (["evaluation.protocols=[4x]", "attention=band"], "attention=band reads at most data.length=160 tokens"),
        (["data=builtin_text"], "data=builtin_text (of recall) is not for task=recall"),
    ],
)
def test_a_recall_that_cannot_be_is_one_line(capsys, tmp_path, arguments, line):
    assert train_lm("experiment=recall", "attention=softmax", *arguments, f"runs_root={tmp_path}") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert line in error

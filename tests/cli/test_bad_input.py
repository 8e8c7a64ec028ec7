"""Wrong input: one line on stderr that names the thing and a way out, exit code 2, and nothing written."""

import importlib
import resource
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fourierformer.runs import launch
from fourierformer.runs.launch import quoted, with_home
from tests.helpers.command_line import MODEL, start, train_lm, train_vit

WRONG = {
    "augment=deit": "has no augment=: it belongs to python train_vit.py",
    "augment.mixup=0.1": "has no augment=: it belongs to python train_vit.py",
    "data=/data/text": "data=/data/text: a config group takes the name of one of its files, not a path. A data set",
    "sed=3": "unknown key 'sed' (did you mean 'seed'?)",
    "model.depth=3": "unknown key 'model.depth' for model=lm_tiny (did you mean 'model.layers'?)",
    "+typo=1": "unknown key 'typo' (valid: attention, data,",
    "++optim.lrr=1": "unknown key 'optim.lrr' (did you mean 'optim.lr'?)",
    "lr=1": "unknown key 'lr' (did you mean 'optim.lr'?)",
    "learning_rate=1": "unknown key 'learning_rate' (did you mean 'optim.lr'?)",
    "optim.learning_rate=1": "unknown key 'optim.learning_rate' for optim=adam (did you mean 'optim.lr'?)",
    "steps=5": "unknown key 'steps' (did you mean 'trainer.steps'?)",
    "attention=": "attention=: no such attention (there is no configs/attention/.yaml). Options: a",
    "data.rot=x": "unknown key 'data.rot' for data=builtin_text (did you mean 'data.root'?)",
    "swep=quickstart": "unknown key 'swep' (did you mean 'sweep'?)",
    "expermient=wt2_small": "unknown key 'expermient' (did you mean 'experiment'",
    "attention=mine": "attention=mine: no such attention (there is no configs/attention/mine.yaml). Options: a",
    "~attention.name": "the yaml of the chosen attention lacks its name",
    "attn=fourier": "unknown key 'attn' (did you mean 'attention'?)",
    "attention=fourierr": "attention=fourierr: no such attention (did you mean 'fourier'?)\n",
    "experiment=wt103_smal": "no such experiment (did you mean 'wt103_small'?)\n",
    "sweep=quickstrt": "no such sweep (did you mean 'quickstart'?)",
    "data=wikitext": "data=wikitext: no such data (did you mean 'wikitext2' or 'wikitext103'?)",
    "hydra/launcher=joblb": "(did you mean 'joblib'?)",
    "attention.powr=2": "unknown key 'attention.powr' for attention=fourier (did you mean 'attention.power'?)",
    "attention=softmax attention.power=2": "unknown key 'attention.power': attention=softmax has no settings",
    "attention=softmax ++attention.power=2": "unknown key 'attention.power' (valid: attention.name)",
    "attention.power=3": "attention.power must be an even integer >= 2, got 3",
    "attention.power=four": "attention.power='four': expected a whole number",
    "attention.backend=foo": "unknown Fourier attention backend 'foo'",
    "model.layers=9223372036854775807": "model.layers=9223372036854775807: must be at least 1 and less than 1,001",
    "attention=softmax,fourier": "several values: add -m",
    "~attention": "no attention chosen: attention=fourier, or another of",
    "~attention.power": "no value for attention.power",
    "seed=abc": "seed='abc': expected a whole number",
    "seed=true": "seed=True: expected a whole number",
    "seed=-1": "seed=-1: must be at least 0",
    "seed=[1": "cannot read 'seed=[1'",
    "seed": "'seed' has no value: write seed=VALUE",
    "trainer.steps:20": "'trainer.steps:20' has no value: write trainer.steps=20",
    "trainer.steps=1e3": "trainer.steps=1000.0: expected a whole number or null. Write trainer.steps=1000\n",
    "seed=range(1,3)": "seed names several values: add -m",
    "data.cutoffs=5": "expected a list of a whole number, e.g. [1,2]",
    "evaluation.splits=valid": "expected a list of 'train' or 'valid' or 'test', e.g. [train,valid]",
    "optim.betas=0.9": "e.g. [0.1,0.2]",
    "data.root=/tëxt": """quotes of its own: 'data.root="/tëxt"'""",
    "trainer.steps=many": "trainer.steps='many': expected a whole number",
    "trainer.steps=0": "trainer.steps=0: must be at least 1",
    "trainer.steps=???": "no value for trainer.steps",
    "trainer.eval_every=-1": "trainer.eval_every=-1: must be at least 1",
    "trainer.precision=fp17": "trainer.precision='fp17': expected 'fp32' or 'tf32' or 'bf16'",
    "trainer.device=tpu9": "trainer.device='tpu9': expected auto, cpu, cuda, or cuda:N",
    "trainer.device=meta": "trainer.device='meta': expected auto, cpu, cuda, or cuda:N",
    "trainer.micro_batch_size=999": "micro_batch_size=999 is more than global_batch_size=",
    "global_batch_size=0": "global_batch_size=0: must be at least 1",
    "optim.lr=0": "optim.lr=0: must be more than 0",
    "optim.lr=nan": "optim.lr=nan: expected a finite number",
    "optim.lr=1e300": "optim.lr=1e+300: expected a finite number that float32 holds",
    f"trainer.steps={2**63}": f"trainer.steps={2**63}: expected a whole number",
    "trainer.steps=null trainer.epochs=1e7": "trainer.epochs=10000000.0: must be more than 0 and less than 1e+06",
    "schedule.warmup_start=1": "schedule.warmup_start=1: must be at least 0 and less than 1",
    "attention.eps=1e-320": "attention.eps=1e-320: expected a finite number",
    "attention=isab attention.points=16777217": "attention.points=16777217: must be at least -16,777,216 and less than",
    "attention.eps=nan": "attention.eps=nan: expected a finite number",
    "attention.radius=1e300": "attention.radius=1e+300: expected a finite number",
    "attention.radius=1e30": "attention.radius=1e+30: must be more than 0 and less than 1e+06",
    "attention.radius=0": "attention.radius=0.0: must be more than 0",
    "attention.radius=-1": "attention.radius=-1.0: must be more than 0",
    "data.cutoffs=[-1]": "data.cutoffs=[-1] must grow, from at least 1",
    "data.cutoffs=[5,3]": "data.cutoffs=[5, 3] must grow",
    "scale=quick": "scale=quick has no effect here: it chooses the experiments of a sweep",
    "experiment=null": "experiment=null: no such experiment ('~experiment' leaves it out). Options: builtin,",
    "debug=null": "debug=null: no such debug ('~debug' leaves it out). Options: smoke,",
    "variant=matched attention=softmax": "in whose place attention=softmax would run",
    "variant=null": "variant=null: no such variant ('~variant' leaves it out).",
    "attention.name=[1]": "attention.name=[1]: expected text",
    "attention=softmax attention.name=fourier": "attention=softmax has attention.name=fourier, and fourier would run",
    "attention.name=${nope}": "cannot resolve 'attention.name': Interpolation key 'nope' not found",
    "debug=[1,2]": "cannot compose these overrides",
    "attention=1": "attention=1: no such attention. Options: adaptive_span, aft_conv,",
    "optim.betas=[0.9]": "optim.betas=[0.9]: give two numbers",
    "schedule.warmup_steps=-1": "schedule.warmup_steps=-1: must be at least 0",
    "model.dropout=2": "model.dropout=2: must be at least 0 and less than 1",
    "model.dim=63": "model.dim=63 must be even and divisible by model.heads=4",
    "model.dim=${nope}": "cannot resolve 'model.dim': Interpolation key 'nope' not found",
    "experiment_name=a/b": "experiment_name='a/b' is the name of a folder",
    "model.name=../../x": "model.name='../../x' is the name of a folder",
    "experiment_name='a\0b'": "is the name of a folder: choose one without '/', without a leading dot and without",
    "data.name=a/b": "data.name='a/b' is the name of a folder",
    "data.cache='a\0b'": "is no path: choose a folder",
    "run_dir=''": "run_dir='' is no path: choose a folder",
    "run_dir='~no_such_user/x'": "there is no user of that name",
    "evaluation.protocols=[slide]": "expected a list of 'segment' or 'overlapping' or 'sliding'",
    "evaluation.max_tokens=1": "evaluation.max_tokens=1: must be at least 100",
    "evaluation.word_swap=2": "evaluation.word_swap=2: a share of the words, from 0 to 1",
    "model.rotary_base=100": "model.rotary_base=100 has no effect with model.position=sinusoid: rotary",
    "debug=smoke_recall": "debug=smoke_recall needs experiment=recall; here: debug=smoke",
    "init_from=/no/such/run dry_run=true": "/no/such/run is not a run directory",
    "experiment=recall data.angle=45": "data.angle, norm_spread and twin_cosine are for keys that are vectors",
    "experiment=recall data.previous_token=true": "data.previous_token=true has no effect with data.layout=pairs",
}


REST = pytest.mark.full("every third stays in the fast tier")


@pytest.mark.parametrize(
    "arguments", [pytest.param(wrong, marks=REST if number % 3 else ()) for number, wrong in enumerate(WRONG)]
)
def test_is_one_clear_line(arguments, tmp_path, capfd):
    assert train_lm(*arguments.split(), f"runs_root={tmp_path / 'runs'}") == 2
    printed, error = capfd.readouterr()
    assert error.startswith("error: ")
    assert WRONG[arguments] in error
    assert error.count("\n") == 1
    assert printed == "loading ...\n"
    assert not list(tmp_path.iterdir()), "nothing is made before the input is known to be right"


def test_several_sweeps_at_once_are_refused(tmp_path, capfd):
    assert train_lm("sweep=quickstart,recall", f"runs_root={tmp_path / 'runs'}") == 2
    expected = "sweep=quickstart,recall: sweep= takes one name of configs/sweep, start several one after the other"
    assert capfd.readouterr() == ("", f"error: {expected}\n")
    assert not list(tmp_path.iterdir())


def test_the_home_directory_may_be_named_in_any_folder(tmp_path, monkeypatch, capfd):
    """Shells leave ~ after `key=` as it is, and Hydra cannot read it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "text").mkdir()
    folders = [f"{key}=~/text" for key in ("data.root", "data.cache", "runs_root")]
    assert train_lm("data=wikitext2", *folders, "data.hub=null", "dry_run=true") == 2
    printed, error = capfd.readouterr()
    assert f"{tmp_path / 'text'} lacks wiki.train.tokens" in printed
    assert "the data is missing" in error


def test_a_key_that_is_given_twice_is_named(tmp_path, capfd):
    assert train_lm("attention=fourier", "seed=-1", "attention=softmax", f"runs_root={tmp_path / 'runs'}") == 2
    assert capfd.readouterr().out == "loading ...\nnote: attention= is given more than once, the last one counts\n"


@pytest.mark.parametrize(("size", "noted"), [(2**31, True), (2**32, False), (resource.RLIM_INFINITY, False)])
def test_a_small_address_space_is_named_before_torch_may_abort_in_it(size, noted, monkeypatch, capfd):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (size, size))
    assert train_lm("seed=-1") == 2
    assert ("2.0 GiB of addresses (ulimit -v)" in capfd.readouterr().out) == noted


def test_a_worker_that_was_killed_is_one_line_with_a_way_out(capfd):
    def action():
        raise type("TerminatedWorkerError", (Exception,), {"__module__": "joblib.externals"})(
            "A worker was terminated.\n\n"
        )

    assert launch._ended(action) == 1
    expected = "error: A worker was terminated. Or a signal ended it: the same command finishes the sweep\n"
    assert capfd.readouterr().err == expected


@pytest.mark.parametrize("words", [["--lr", "0.01"], ["--optim.lr=0.01"]])
def test_an_option_of_another_program_is_one_clear_line(words, capfd):
    assert train_lm(*words) == 2
    printed, error = capfd.readouterr()
    assert printed == ""
    assert error.startswith(f"error: {words[0]}: values are given as key=value, without --, for example optim.lr=0.01")
    assert error.count("\n") == 1


def test_a_warmup_longer_than_the_training_is_noted(smoke, tmp_path, capfd):
    assert train_lm(*smoke, "is_debug=false", "schedule.warmup_steps=9", f"runs_root={tmp_path}") == 0
    assert "note: training ends during the warm-up (step 4 of 9): schedule.warmup_steps=1" in capfd.readouterr().out


def test_a_plan_names_a_shorter_warmup_also_in_epochs(tmp_path, capfd):
    short = ("experiment=cifar10_deit", "trainer.steps=30", "trainer.epochs=null", "dry_run=true", "tracker=none")
    train_vit(*short, f"data.root={tmp_path}", f"runs_root={tmp_path}")
    way_out = "schedule.warmup_steps=3 schedule.warmup_epochs=null"
    warmup = 10 * (50_000 // 512)  # epochs of CIFAR-10
    assert f"training ends during the warm-up (step 30 of {warmup}): {way_out}\n" in capfd.readouterr().out
    assert train_vit(*short, *way_out.split(), "data=builtin_images", f"runs_root={tmp_path}") == 0
    assert "warm-up" not in capfd.readouterr().out


def test_no_name_among_the_names_of_a_sweep(tmp_path, capfd):
    assert train_lm("-m", "attention=softmax,fourier", "debug=smoke,null", f"runs_root={tmp_path}") == 2
    assert capfd.readouterr().err.startswith(
        "error: debug=null: no such debug ('~debug' leaves it out). Options: smoke,"
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("augment.color_jitter=1e300", "augment.color_jitter=1e+300: expected a finite number"),
        ("augment.color_jitter=255", "augment.color_jitter=255: must be at least 0 and less than 10"),
        ("augment.eval_crop=0.0001", "augment.eval_crop=0.0001: must be at least 0.1"),
        ("data.mean=[nan,0,0]", "data.mean=[nan, 0, 0]: expected a list of a finite number"),
        ("data.mean=[0.5,124,0.5]", "data.mean=124: must be at least 0 and less than 1"),
        (f"model.mlp_ratio={2**63}", f"model.mlp_ratio={2**63}: must be more than 0 and less than 1,000"),
        ("model.mlp_ratio=1e-30", "model.mlp_ratio=1e-30 leaves nothing of model.dim="),
        (f"model.dim={2**62}", f"model.dim={2**62}: must be at least 1 and less than 16,777,217"),
        (f"data.workers={2**62}", f"data.workers={2**62}: must be at least 0 and less than 1,025"),
        ("data.std=[0,1,1]", "data.std=0: must be at least 0.0001"),
    ],
)
def test_of_images_is_one_clear_line_too(argument, message, tmp_path, capfd):
    assert train_vit(argument, f"runs_root={tmp_path / 'runs'}") == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_evaluation_that_cannot_work_fails_before_the_training(smoke, tmp_path, capfd):
    """small_text has 500 tokens to test on: 50 lines of 9 words and <eos>."""
    short = ("evaluation.protocols=[segment,sliding]", f"runs_root={tmp_path}")
    for few, tokens in (("evaluation.max_tokens=100 model.length=100", 100), ("model.length=500", 500)):
        assert train_lm(*smoke, *short, *few.split(), "global_batch_size=1") == 2
        printed, error = capfd.readouterr()
        assert error.startswith(f"error: {tokens} tokens are too few for a window of {tokens} tokens")
        assert "loss" not in printed
    assert not list(tmp_path.rglob("step_*"))


@pytest.mark.parametrize("task", ["language", "masked"])
def test_a_valid_split_too_short_to_measure_during_training_fails_before_it(task, tmp_path, capfd):
    lines = {"train": 300, "valid": 1, "test": 300}
    for split, count in lines.items():
        (tmp_path / f"{split}.txt").write_text("a b c d e\n" * count)
    text = ("data=text", f"data.root={tmp_path}", f"data.cache={tmp_path}/cache", "data.vocabulary_size=null")
    experiment = {"language": (), "masked": ("experiment=builtin_mlm",)}[task]
    arguments = (*experiment, *MODEL, *text, "evaluation.splits=[test]", f"runs_root={tmp_path}/runs")
    assert train_lm(*arguments) == 2
    printed, error = capfd.readouterr()
    assert error.startswith("error: validation during training is not possible: ")
    assert "loss" not in printed


def test_a_gpu_that_is_not_there(tmp_path, capfd):
    device = "cuda:99"
    assert train_lm(f"trainer.device={device}", f"runs_root={tmp_path / 'runs'}") == 2
    assert f"error: trainer.device={device}" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_missing_data_is_an_error_with_three_ways_out(tmp_path, capfd):
    code = train_lm("data=wikitext2", f"data.root={tmp_path / 'no'}", f"data.cache={tmp_path}", f"runs_root={tmp_path}")
    assert code == 2
    error = capfd.readouterr().err
    assert error.startswith("error: Data 'wikitext2' is missing")
    assert all(f"\n  ({letter}) " in error for letter in "abc")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(smoke, tmp_path, capfd):
    (tmp_path / "file").write_text("in the way")
    assert train_lm(*smoke, f"runs_root={tmp_path}/file/runs") == 2
    assert "error: Cannot write the run directory" in capfd.readouterr().err
    assert train_lm("-m", *smoke, f"runs_root={tmp_path}/file/runs") == 2
    error = capfd.readouterr().err
    assert "choose another folder: runs_root=" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--help"], ["Examples", "attention: adaptive_span, aft_conv,", "experiment: builtin,", "runs_root"]),
        (["--cfg", "job", "--resolve", "trainer.steps=17"], ["name: lm_tiny", "experiment_name: builtin", "steps: 17"]),
        (["-sc", "install=bash"], ["hydra_bash_completion"]),
    ],
)
def test_what_hydra_offers_still_works(arguments, parts, capfd):
    assert train_lm(*arguments) == 0
    printed, error = capfd.readouterr()
    assert error == ""
    for part in parts:
        assert part in printed


def test_the_defaults_tree():
    process = start("--info", "defaults-tree")
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "experiment: builtin" in printed


def test_a_reader_that_leaves_early_makes_no_noise():
    process = start("--help")
    process.stdout.close()  # as `| head` does
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("script", "experiment", "message"),
    [
        (train_vit, "builtin", "evaluation.max_tokens (of builtin) is not for task=vision: python train_lm.py"),
        (train_vit, "recall", "recall is for task=recall: python train_lm.py"),
        (train_lm, "builtin_vit", "(of builtin_vit) is not for task=language: python train_vit.py"),
    ],
)
def test_an_experiment_of_the_other_script_is_named_with_its_command(script, experiment, message, capfd):
    assert script(f"experiment={experiment}") == 2
    assert message in capfd.readouterr().err


def test_a_sweep_for_the_other_script_is_refused_before_it_writes_into_its_folder(tmp_path, capfd):
    assert train_vit("sweep=quickstart", f"runs_root={tmp_path}") == 2
    assert "is not for task=vision: python train_lm.py trains language models" in capfd.readouterr().err
    assert not (tmp_path / "quickstart").exists()


@pytest.mark.parametrize(
    ("train", "arguments", "right"),
    [
        (train_vit, "debug=smoke", "debug=smoke is for task=language: python train_vit.py debug=smoke_vit"),
        (train_lm, "experiment=imagenet_deit_tiny", "Its command: python train_vit.py experiment=imagenet_deit_tiny"),
        (
            train_lm,
            "task=vision debug=smoke",
            "debug=smoke is for task=language: python train_vit.py debug=smoke_vit",
        ),
        (train_lm, "debug=smoke_vit", "debug=smoke_vit is for task=vision: python train_lm.py debug=smoke"),
        (train_vit, "experiment=wt103_small", "python train_lm.py"),
    ],
)
def test_what_is_for_the_other_script_names_the_right_command(train, arguments, right, tmp_path, capfd):
    assert train(*arguments.split(), f"runs_root={tmp_path / 'runs'}") == 2
    error = capfd.readouterr().err
    assert right in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("override", ["scale.vision=${..seed}", "schedule.warmup_steps=${..seed}"])
@pytest.mark.parametrize("several", [[], ["-m"]])
def test_a_relative_interpolation_is_a_value(override, several, tmp_path):
    """It is relative to its place in the config, not to the list of overrides."""
    arguments = ["debug=smoke", "attention=softmax", "dry_run=true", f"runs_root={tmp_path}", override]
    assert train_lm(*several, *arguments) == 0


def test_another_python_is_told_the_way_into_the_environment(monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra", None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, "fourierformer.runs.launch", raising=False)
    with pytest.raises(SystemExit, match=r"no hydra-core\..*`make setup`, then `source .venv/bin/activate`"):
        importlib.import_module("fourierformer.runs.launch")


@pytest.mark.parametrize(
    "path", ["/data/wörter", "/a (b)/c", "it's", "a\\b", "a\\", "a\\'b", "~/x", "a,b", '"q"', "${x}"]
)
def test_a_quoted_value_is_read_as_it_is(path):
    (override,) = OverridesParser.create().parse_overrides([f"data.root={quoted(path)}"])
    assert override.value() == path


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("runs_root=~/x", "{home}/x"),
        ('runs_root="~/x y"', "{home}/x y"),
        ("data.root='~/x'", "{home}/x"),
        ("runs_root=/a", "/a"),
        ("model=~/x", "~/x"),
    ],
)
def test_a_home_is_expanded_also_in_quotes(word, read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert with_home(word).partition("=")[2].strip("\"'") == read.format(home="/home/me")

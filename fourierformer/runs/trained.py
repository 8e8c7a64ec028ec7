"""Load trained models from a run directory, an exported folder or the hub, and export them as such a folder, or runs
of a study as folders in one, with FOLDER/SHA256SUMS.

FOLDER/model.safetensors    the weights
FOLDER/config.json          how the model is built, for from_pretrained, transformers (language) and timm (vision)
FOLDER/data.json            vocabulary or names of classes
FOLDER/tokenizer.json       ids of a text, for transformers (language), with tokenizer_config.json
FOLDER/README.md            the model card
"""

import contextlib
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from fourierformer import __version__
from fourierformer.checking import has_type
from fourierformer.config import RunSpec, flatten
from fourierformer.errors import SetupError, UserError, first_line, short
from fourierformer.files import atomic_write_text, file_sha256, open_own, read_json, replacing
from fourierformer.network import first_hop
from fourierformer.printing import echo
from fourierformer.results.card import model_card
from fourierformer.results.collection import collect
from fourierformer.results.runs import read_run
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import misfit, pick_device, stored_checkpoint, weights_of
from fourierformer.runs.spec import attention_of, spec_of_values, stored_hash, stored_spec, task_of
from fourierformer.tasks import AnyCorpus
from fourierformer.tasks.trained import TrainedModel

WEIGHTS, CONFIG, FACTS = "model.safetensors", "config.json", "data.json"  # the files of an exported model
SUMS = "SHA256SUMS"  # of an exported study
PLAUSIBLE = 2**20  # a size of a model of which no tensor in the file needs to be evidence: a window, a seed
UNFINISHED = ".unfinished"  # in the folder while it is written: after a kill the same command replaces what is there
HUB = "hub:"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def load_run(run: Path | str, device: str = "auto", *, last: bool = False, averaged: bool = False) -> TrainedModel:
    """The trained model of a run directory, ready to use without its data set. `last` takes the newest checkpoint in
    place of the best, `averaged` the moving average of the weights."""
    run = Path(run).expanduser()
    spec = stored_spec(run)
    step, state = stored_checkpoint(run, stored_hash(run), last=last)
    return _assembled(run, spec, _corpus(run, spec), weights_of(state, run, averaged), step, device)


def _corpus(run: Path, spec: RunSpec):
    """The facts that the run kept of its data; the data itself where it kept none."""
    facts, task = read_json(RunDirectory(run).data_facts), task_of(spec)
    if facts is not None:
        return task.corpus_of(spec, facts)
    echo(f"{run} is of a version that kept no {FACTS} with a run: its data set is loaded instead", file=sys.stderr)
    return task.load_data(spec, lambda line: None)


def _assembled(where: Path, spec: RunSpec, corpus, weights: dict, step: int, device: str) -> TrainedModel:
    """The model of a spec with these weights, in evaluation mode. Draws nothing from torch's random numbers."""
    task = task_of(spec)
    with torch.random.fork_rng(devices=[]):
        model = task.build_model(spec, attention_of(spec), corpus)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise SetupError(
            f"{where}: its weights do not fit its model ({misfit(error)}): restore a copy, or the code that trained it"
        ) from None
    return task.trained(spec, model.to(pick_device(device)).eval(), corpus, step)


def from_pretrained(name: Path | str, device: str = "auto") -> TrainedModel:
    """The trained model of a folder that scripts/export.py wrote, or of a repository of the Hugging Face hub. Its
    outputs equal those of `load_run` bit by bit."""
    folder = _folder(name)
    config, facts = read_export(folder)
    spec, corpus = _described(folder, config["run"], facts)
    weights = {_own_name(name): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    return _assembled(folder, spec, corpus, weights, config["step"], device)


def load_run_or_export(path: Path, device: str = "auto", *, last: bool = False, averaged: bool = False) -> TrainedModel:
    """`load_run`, or `from_pretrained` of an exported folder, which has one set of weights."""
    if not (path / WEIGHTS).is_file():
        return load_run(path, device, last=last, averaged=averaged)
    if last or averaged:
        raise SetupError(f"{path} is an exported model with one set of weights: leave out --checkpoint and --weights")
    return from_pretrained(path, device)


def _own_name(name: str) -> str:
    """The name of a tensor, also in a file that `save_pretrained` of transformers wrote."""
    return name.removeprefix("model.")


def _described(folder: Path, run: dict, facts: dict) -> tuple[RunSpec, AnyCorpus]:
    """The spec and the corpus of an exported model. SetupError unless they describe a model whose weights have the
    sizes of those in the file: memory must not be allocated for whatever sizes an edited config.json has."""
    sizes = _sizes(folder / WEIGHTS)
    most = max(PLAUSIBLE, sum(map(math.prod, sizes.values())))
    limits = dict.fromkeys(("model.layers", "model.depth"), len(sizes))  # a layer has a tensor at least
    for key, value in flatten({section: run.get(section) for section in ("model", "attention")}):
        if isinstance(value, int) and value > limits.get(key, most):
            raise SetupError(f"{folder / CONFIG}: {key}={value} does not fit the weights in {WEIGHTS}: restore a copy")
    try:
        spec = spec_of_values(run)
        task = task_of(spec)
        corpus = task.corpus_of(spec, facts)
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            described = task.build_model(spec, attention_of(spec), corpus).state_dict()
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise SetupError(f"{folder}: {CONFIG} and {FACTS} describe no model ({short(error)}): restore a copy") from None
    for name in sorted(sizes.keys() | described.keys()):
        wanted = tuple(described[name].shape) if name in described else None
        if wanted != sizes.get(name):
            reason = f"size mismatch for {name}: {wanted} by its {CONFIG}, {sizes.get(name)} in {WEIGHTS}"
            raise SetupError(f"{folder}: its weights do not fit its model ({reason}): restore a copy")
    return spec, corpus


def _sizes(path: Path) -> dict[str, tuple[int, ...]]:
    """The sizes of the tensors in a file, which it states at its beginning."""
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            raise OSError("there is no such file")
        with safe_open(path, "pt") as file:
            return {_own_name(name): tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SetupError(f"{path} cannot be read ({first_line(error)}): restore it from a copy") from None


def read_export(folder: Path) -> tuple[dict, dict]:
    """config.json and data.json of an exported model."""
    if not (folder / CONFIG).is_file():
        is_run = (folder / "config.yaml").is_file()
        hint, run = (": it is a run, which load_run loads", folder) if is_run else ("", "RUN")
        command = f"python scripts/export.py {run} --to FOLDER"
        raise SetupError(f"{folder} is no exported model, it has no {CONFIG}{hint} ({command} writes one)")
    try:
        config, facts = read_json(folder / CONFIG) or {}, read_json(folder / FACTS)
    except UserError as error:
        raise SetupError(str(error)) from None
    if not (isinstance(config.get("run"), dict) and has_type(config.get("step"), int)) or facts is None:
        lacking = f"it has no {FACTS}, or no run or step in {CONFIG}"
        copy = f"beside a model saved by transformers put the {FACTS} of the export that it was loaded from"
        raise SetupError(f"{folder} was not written by scripts/export.py: {lacking} ({copy})")
    return config, facts


def _folder(name: Path | str) -> Path:
    """The folder of this name, or a copy of the hub's repository of this name."""
    if (folder := Path(name).expanduser()).is_dir():
        return folder
    if not HUB_NAME.fullmatch(str(name)):
        raise SetupError(f"{name}: no such folder, and not the name of a repository of the hub (owner/name)")
    from huggingface_hub import constants, snapshot_download

    first_hop(urlsplit(constants.ENDPOINT))  # the client's message of a wrong proxy has its password
    try:
        return Path(snapshot_download(str(name), allow_patterns=[WEIGHTS, CONFIG, FACTS, "README.md"]))
    except Exception as error:  # not found, no network, a wrong proxy: the client's errors have no common base
        raise SetupError(f"{name}: no such folder, and downloading it failed: {first_line(error)}") from None


def without_paths(values: dict) -> dict:
    """A run's config without the folders of the machine that trained it; of the run behind `init_from` its name."""
    values = json.loads(json.dumps(values))
    values |= {"runs_root": "runs", "run_dir": None}
    values |= {"init_from": Path(values["init_from"]).name} if values.get("init_from") else {}
    values["data"] |= {key: "data" for key in ("root", "cache") if values["data"].get(key) is not None}
    return values


def export_run(run: Path | str, to: Path | str, *, last: bool = False, averaged: bool = False) -> str:
    """Write the model of a run into the folder `to`, or upload it to "hub:owner/name". Returns its path or address.
    Of a folder of runs, each that is completed gets a folder in `to`."""
    run = Path(run)
    is_study = run.is_dir() and any(found.path != run for found in collect(run))
    write = _write_all if is_study else _write
    if not str(to).startswith(HUB):
        folder = Path(to)
        in_use = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if in_use and not (folder / UNFINISHED).is_file():
            raise SetupError(f"{folder} exists and is not empty: choose another folder")
        write(run, folder, last=last, averaged=averaged)
        return str(folder)
    name = str(to).removeprefix(HUB)
    if not HUB_NAME.fullmatch(name):
        raise SetupError(f"--to {to}: a repository of the hub is written hub:owner/name")
    with tempfile.TemporaryDirectory() as temporary:
        write(run, Path(temporary), last=last, averaged=averaged)
        return _upload(Path(temporary), name)


def _write(run: Path, folder: Path, *, last: bool, averaged: bool) -> None:
    trained = load_run(run, "cpu", last=last, averaged=averaged)
    task = task_of(trained.spec)
    config = {
        "fourierformer": __version__,
        "run": without_paths(trained.spec.values),
        "step": trained.step,
        **task.export_config(trained.spec, trained.model, trained.corpus),
    }
    facts = task.data_facts(trained.corpus)
    if facts is None:
        raise SetupError(f"{run}: models of task={trained.spec.task} cannot be exported, they need their data set")
    settings = trained.spec.values["attention"]
    card = model_card(read_run(run), trained.step, settings, task.pipeline, last=last, averaged=averaged)
    # a copy of each: safetensors refuses tensors that share memory
    weights = {name: tensor.clone().contiguous() for name, tensor in trained.model.state_dict().items()}
    with _unfinished(folder):
        # not save_file: its files can be read by their owner only
        with replacing(folder / WEIGHTS) as file:
            file.write(save(weights, metadata={"format": "pt"}))
        atomic_write_text(folder / FACTS, json.dumps(facts, ensure_ascii=False) + "\n")
        atomic_write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
        for name, content in task.export_files(trained.spec, trained.corpus).items():
            atomic_write_text(folder / name, json.dumps(content, ensure_ascii=False) + "\n")
        atomic_write_text(folder / "README.md", card)
        for path in folder.glob(".*.tmp"):  # left by a killed export
            path.unlink()


def _write_all(study: Path, folder: Path, *, last: bool, averaged: bool) -> None:
    """Write the completed runs below `study` under their own names, and SHA256SUMS, which `sha256sum --check` reads."""
    runs = [run.path.relative_to(study) for run in collect(study) if run.state == "completed"]
    if not runs:
        raise SetupError(f"{study} has no completed run: the command that trained them continues those that are not")
    with _unfinished(folder):
        for run in runs:
            _write(study / run, folder / run, last=last, averaged=averaged)
        files = [path for run in runs for path in sorted((folder / run).iterdir()) if path.is_file()]
        sums = "".join(f"{file_sha256(path)}  {path.relative_to(folder)}\n" for path in files)
        atomic_write_text(folder / SUMS, sums)


@contextlib.contextmanager
def _unfinished(folder: Path) -> Iterator[None]:
    """A context that creates the folder, and marks it until all of it is written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(open_own(str(folder / UNFINISHED), os.O_CREAT | os.O_WRONLY))
        yield
        (folder / UNFINISHED).unlink()
    except OSError as error:
        raise SetupError(f"{folder} cannot be written ({error.strerror or error}): choose another folder") from None


def _upload(folder: Path, name: str) -> str:
    import huggingface_hub

    client = huggingface_hub.HfApi()
    try:
        client.create_repo(name, exist_ok=True)
        client.upload_folder(repo_id=name, folder_path=folder, commit_message="Model exported by fourierformer")
    except Exception as error:  # no network, no token, no right to write: the client's errors have no common base
        needs = "it needs a network, and a token: `hf auth login`"
        raise SetupError(f"{name} was not uploaded: {first_line(error)} ({needs})") from None
    return f"https://huggingface.co/{name}"

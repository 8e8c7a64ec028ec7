"""A trained run as a folder that others can load: safetensors, config, vocabulary, model card. And its upload.

FOLDER/model.safetensors    the weights
FOLDER/config.json          how the model is built, for from_pretrained, transformers (language) and timm (vision)
FOLDER/data.json            vocabulary or names of classes
FOLDER/README.md            the model card
"""

import json
import tempfile
from pathlib import Path

from fourierformer import __version__
from fourierformer.errors import SetupError, first_line
from fourierformer.files import atomic_write_text
from fourierformer.results.card import model_card
from fourierformer.results.runs import read_run
from fourierformer.runs.load import CONFIG, FACTS, HUB_NAME, WEIGHTS, load_run, without_paths
from fourierformer.tasks import task_named
from fourierformer.tasks.trained import TrainedModel

HUB = "hub:"


def export_run(run: Path | str, to: Path | str, *, last: bool = False, averaged: bool = False) -> str:
    """Writes the model of a run into the folder `to`, or uploads it to "hub:owner/name"; returns where it is."""
    if not str(to).startswith(HUB):
        folder = Path(to)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SetupError(f"{folder} exists and is not empty: choose another folder")
        _write(Path(run), folder, last=last, averaged=averaged)
        return str(folder)
    name = str(to).removeprefix(HUB)
    if not HUB_NAME.fullmatch(name):
        raise SetupError(f"--to {to}: a repository of the hub is written hub:owner/name")
    with tempfile.TemporaryDirectory() as temporary:
        _write(Path(run), Path(temporary), last=last, averaged=averaged)
        return _upload(Path(temporary), name)


def _write(run: Path, folder: Path, *, last: bool, averaged: bool) -> None:
    from safetensors.torch import save

    trained = load_run(run, "cpu", last=last, averaged=averaged)
    task = task_named(trained.spec.task)
    config = {
        "fourierformer": __version__,
        "run": without_paths(trained.spec.values),
        "step": trained.step,
        **task.export_config(trained.spec, trained.model, trained.corpus),
    }
    card = model_card(read_run(run), trained.step, trained.spec.values["attention"], task.pipeline)
    # a copy of each: safetensors refuses tensors that share memory
    weights = {name: tensor.clone().contiguous() for name, tensor in trained.model.state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # not save_file: its files can be read by their owner only
        (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        atomic_write_text(folder / FACTS, json.dumps(_facts(run, trained), ensure_ascii=False) + "\n")
        atomic_write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
        atomic_write_text(folder / "README.md", card)
    except OSError as error:
        raise SetupError(f"{folder} cannot be written ({error.strerror or error}): choose another folder") from None


def _facts(run: Path, trained: TrainedModel) -> dict:
    facts = task_named(trained.spec.task).data_facts(trained.corpus)
    if facts is None:
        raise SetupError(f"{run}: models of task={trained.spec.task} cannot be exported, they need their data set")
    return facts


def _upload(folder: Path, name: str) -> str:
    import huggingface_hub

    client = huggingface_hub.HfApi()
    try:
        client.create_repo(name, exist_ok=True)
        client.upload_folder(repo_id=name, folder_path=folder, commit_message="Model exported by fourierformer")
    except Exception as error:  # no network, no token, no right to write: the client's errors have no common base
        raise SetupError(
            f"{name} was not uploaded: {first_line(error)} (it needs a network, and a token: `hf auth login`)"
        ) from None
    return f"https://huggingface.co/{name}"

"""Trained models away from their data: loaded in two lines, exported, uploaded, loaded by other libraries."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fourierformer
from fourierformer.errors import SetupError
from fourierformer.files import read_json
from fourierformer.results import collect
from fourierformer.runs import trained
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import open_run
from fourierformer.runs.trained import export_run, load_run_or_export
from fourierformer.tasks import task_named
from scripts import evaluate, export, generate
from tests.helpers.command_line import IMAGES, REPOSITORY, only_run, train_vit


@pytest.fixture
def without_data(monkeypatch):
    """No data set can be loaded."""
    for name in ("language", "vision", "masked", "seq2seq"):
        monkeypatch.setattr(type(task_named(name)), "load_data", None)


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    """(a finished run, the folder of its model)"""
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_run(finished[1], folder)
    return finished[1], folder


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    root = tmp_path_factory.mktemp("vision")
    assert train_vit(*IMAGES, "trainer.ema_decay=0.9", f"runs_root={root}") == 0
    return only_run(root)


def everything(trained, ids):
    """log p of every next token, at every position."""
    with torch.inference_mode():
        hidden = trained.model.hidden(torch.tensor([ids]))[0]
        return trained.model.output.log_probabilities(hidden, trained.model.embedding.weight)


def test_scripts_that_need_no_data_take_an_exported_model(exported, without_data, capsys, monkeypatch, tmp_path):
    run, folder = exported
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import show_attention

    texts, options = [], {"tokens": 12, "temperature": 2.0, "top_k": 3, "seed": 4}
    for path in (run, folder):
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        monkeypatch.setattr(sys, "argv", ["generate.py", str(path), "--prompt", "word3", *words])
        generate.main()
        texts.append(capsys.readouterr().out)
        show_attention.write_text_maps(path, "word3 word7", tmp_path / path.name)
    assert texts[0] == texts[1] == f"{fourierformer.from_pretrained(folder, 'cpu').generate('word3', **options)}\n"
    theirs, ours = (np.load(tmp_path / path.name / "text_maps.npz")["maps"] for path in (run, folder))
    assert np.array_equal(theirs, ours)


def test_a_language_model_in_two_lines(finished, without_data):
    before = torch.get_rng_state()
    model = fourierformer.load_run(str(finished[1]), "cpu")
    text = model.generate("word3 word7", tokens=5, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert text.startswith("word3 word7")
    assert model.encode(text)[:2] == model.encode("word3 word7")
    assert len(model.continued(model.encode("word3"), 20)) == 21  # more than the model reads at once
    assert model.generate(tokens=4, temperature=0) == model.generate(tokens=4, temperature=0, seed=2)
    assert not model.model.training
    for option, wrong in {"tokens": -1, "temperature": math.nan, "top_k": -5}.items():
        with pytest.raises(SetupError, match=f"{option}={wrong}: must be at least 0"):
            model.generate("word3", **{"tokens": 1, option: wrong})
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(SetupError, match=f"seed={seed}: must be at least"):
            model.generate("word3", tokens=1, seed=seed)
    for ids in ([model.corpus.vocab_size], [-1]):
        for use in (model.decode, lambda ids: model.continued(ids, 1)):
            with pytest.raises(SetupError, match=r"ids must be numbers from 0 to \d+: "):
                use(ids)
    with pytest.raises(SetupError, match="there are no ids to continue"):
        model.continued([], 1)
    with pytest.raises(TypeError, match="the text must be a string, got list"):
        model.generate(["word3", "word7"])
    length = model.spec.model.length
    assert model.model.next_token(torch.zeros(1, length, dtype=torch.int64)).isfinite().all()
    with pytest.raises(ValueError, match=f"positions for {length} tokens, got {length + 1}: give the last"):
        model.model.next_token(torch.zeros(1, length + 1, dtype=torch.int64))


def test_it_is_the_model_of_the_checkpoint(finished):
    parts, step = open_run(finished[1], "cpu")
    model = fourierformer.load_run(finished[1], "cpu")
    assert model.step == step
    said = r"TrainedLanguageModel\(\w+ with \w+ attention, [\d,]+ parameters, \w+, step \d+\)"
    assert re.fullmatch(said, repr(model))
    assert model.corpus.words == parts.corpus.words
    tokens = torch.arange(6)[None]
    assert torch.equal(model.model.next_token(tokens), parts.model.next_token(tokens))
    with pytest.raises(SetupError, match="without averaged weights"):
        fourierformer.load_run(finished[1], "cpu", averaged=True)


def test_an_earlier_run_is_loaded_with_its_data_and_says_so(finished, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(finished[1], copy)
    (copy / "data.json").unlink()
    model = fourierformer.load_run(copy, "cpu")
    (line,) = capsys.readouterr().err.splitlines()
    assert "kept no data.json with a run: its data set is loaded instead" in line
    assert model.corpus.words == fourierformer.load_run(finished[1], "cpu").corpus.words
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(SetupError, match="has no checkpoint yet"):
        fourierformer.load_run(copy, "cpu")


def test_an_exported_model_equals_its_run_bit_by_bit(exported, without_data):
    run, folder = exported
    names = {"README.md", "config.json", "data.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names
    own, other = fourierformer.load_run(run, "cpu"), fourierformer.from_pretrained(folder, "cpu")
    ids = own.encode("word3 word7 word1")
    assert other.encode("word3 word7 word1") == ids
    assert torch.equal(everything(own, ids), everything(other, ids))
    assert other.step == own.step
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # whoever reads one file reads the weights too
    machine = str(run.parent.parent.parent)  # no path of the machine that trained it travels
    assert not [path for path in folder.glob("*[nd]") if machine in path.read_text(errors="replace")]


def test_all_runs_of_a_study_are_exported_with_their_sums(exported, tmp_path, monkeypatch):
    run, model = exported
    for name in ("runs/study/one", "runs/study/parts/two", "runs/study/stopped"):
        shutil.copytree(run, tmp_path / name)
    for name in ("status.json", "summary.json"):
        (tmp_path / "runs/study/stopped" / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(trained, "file_sha256", lambda path: 1 / 0)  # ends after the models are written
        with pytest.raises(ZeroDivisionError):
            export_run(tmp_path / "runs/study", tmp_path / "study")
    export_run(tmp_path / "runs/study", tmp_path / "study")  # the same command again
    folders = {path.parent for path in (tmp_path / "study").rglob("model.safetensors")}
    assert folders == {tmp_path / "study/one", tmp_path / "study/parts/two"}
    assert all((folder / "README.md").read_text().startswith("---\nlicense: mit") for folder in folders)
    assert (tmp_path / "study/one/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    checked = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(checked, cwd=tmp_path / "study", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    every = {
        path.relative_to(tmp_path / "study").as_posix() for path in (tmp_path / "study").rglob("*") if path.is_file()
    }
    assert {line.removesuffix(": OK") for line in done.stdout.splitlines()} == every - {"SHA256SUMS"}
    with pytest.raises(SetupError, match="exists and is not empty"):
        export_run(tmp_path / "runs/study", tmp_path / "study")
    shutil.rmtree(tmp_path / "runs/study/one")
    shutil.rmtree(tmp_path / "runs/study/parts")
    with pytest.raises(SetupError, match="study has no completed run"):
        export_run(tmp_path / "runs/study", tmp_path / "other")


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_killed_export_is_replaced_by_the_same_command(exported, tmp_path, monkeypatch, written):
    run, folder = exported
    killed, count = tmp_path / "model", itertools.count()

    def kill(path, text):
        if next(count) == written:
            (path.parent / f".{path.name}.123.tmp").write_text(text[:10])
            raise KeyboardInterrupt  # nothing of ours handles it
        path.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(trained, "atomic_write_text", kill)
        with pytest.raises(KeyboardInterrupt):
            export_run(run, killed)
    export_run(run, killed)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    with pytest.raises(SetupError, match="exists and is not empty"):
        export_run(run, killed)


def test_an_export_in_the_home_directory_is_loaded(exported, monkeypatch):
    _, folder = exported
    monkeypatch.setenv("HOME", str(folder.parent))
    assert fourierformer.from_pretrained(f"~/{folder.name}").step == fourierformer.from_pretrained(folder).step


def test_exporting_overwrites_nothing_and_mistakes_are_explained(exported, tmp_path):
    run, folder = exported
    with pytest.raises(SetupError, match="exists and is not empty"):
        export_run(run, folder)
    with pytest.raises(SetupError, match="is written hub:owner/name"):
        export_run(run, "hub:model")
    with pytest.raises(
        SetupError, match=rf"no config\.json: it is a run, which load_run loads .*export\.py {run} --to FOLDER"
    ):
        fourierformer.from_pretrained(run)
    with pytest.raises(SetupError, match="is an exported model, for fourierformer"):
        fourierformer.load_run(folder)
    with pytest.raises(SetupError, match="is an exported model, not a run"):
        collect(folder)
    with pytest.raises(SetupError, match="is an exported model with one set of weights"):
        load_run_or_export(folder, last=True)
    with pytest.raises(SetupError, match="no such folder, and not the name of a repository"):
        fourierformer.from_pretrained(tmp_path / "nothing" / "there")
    shutil.copytree(folder, tmp_path / "copy")
    with open(tmp_path / "copy/model.safetensors", "r+b") as file:
        file.truncate(100)
    with pytest.raises(SetupError, match=r"model\.safetensors cannot be read .*: restore it from a copy"):
        fourierformer.from_pretrained(tmp_path / "copy")
    facts = json.loads((folder / "data.json").read_text())
    facts |= {"vocabulary": 7, "words": facts["words"][:7]}
    (tmp_path / "copy/data.json").write_text(json.dumps(facts))
    shutil.copy(folder / "model.safetensors", tmp_path / "copy")
    with pytest.raises(SetupError, match=r"its weights do not fit its model \(size mismatch for"):
        fourierformer.from_pretrained(tmp_path / "copy")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SetupError, match=r"was not written by scripts/export\.py"):
        fourierformer.from_pretrained(tmp_path)


class StandIn:
    """The calls of huggingface_hub.HfApi that an upload makes, with a folder in place of the hub."""

    root: Path
    error: Exception | None = None

    def create_repo(self, repo_id, *, exist_ok):
        assert exist_ok
        if self.error:
            raise self.error
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        assert commit_message
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)


def test_the_hub_and_back(exported, tmp_path, monkeypatch):
    import huggingface_hub

    run, folder = exported
    monkeypatch.setattr(StandIn, "root", tmp_path, raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", StandIn)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns: str(tmp_path / name))
    assert export_run(run, "hub:someone/small-model") == "https://huggingface.co/someone/small-model"
    monkeypatch.chdir(tmp_path / "someone")  # where no folder has the repository's name
    model = fourierformer.from_pretrained("someone/small-model", "cpu")
    ids = model.encode("word3")
    assert torch.equal(everything(model, ids), everything(fourierformer.from_pretrained(folder, "cpu"), ids))

    class NoNetwork(Exception):
        """As httpx.ConnectError, which is no OSError."""

    for error in (OSError("401 no token\nlong details"), NoNetwork("401 no token")):
        monkeypatch.setattr(StandIn, "error", error)
        with pytest.raises(SetupError, match=r"was not uploaded: 401 no token \(.*`hf auth login`\)"):
            export_run(run, "hub:someone/small-model")


def test_a_hub_that_does_not_answer_is_one_line():
    with pytest.raises(SetupError) as error:
        fourierformer.from_pretrained("someone/no-such-model")
    assert "no such folder, and downloading it failed" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_hub_is_asked_in_a_fresh_process():
    """Where no other module has imported the client before."""
    call = "import fourierformer; fourierformer.from_pretrained('someone/no-such-model')"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, text=True)
    assert "SetupError: someone/no-such-model: no such folder, and downloading it failed" in done.stderr


def test_it_is_a_model_of_transformers(exported):
    pytest.importorskip("transformers", reason='transformers is not installed: pip install -e ".[transformers]"')
    from transformers import AutoModelForCausalLM

    import fourierformer.integrations.hugging_face

    own = fourierformer.from_pretrained(exported[1], "cpu")
    model = AutoModelForCausalLM.from_pretrained(exported[1], trust_remote_code=False)
    ids = own.encode("word3 word7 word1")
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        output = model(tokens, labels=tokens)
        assert torch.equal(output.logits[0], everything(own, ids))
        predicted = everything(own, ids)[range(len(ids) - 1), ids[1:]]
        torch.testing.assert_close(output.loss, -predicted.mean())
        part = model(tokens, labels=tokens, num_items_in_batch=8)  # of Trainer: the labels of all accumulated batches
        torch.testing.assert_close(part.loss, -predicted.sum() / 8)
        text = model.generate(tokens, max_new_tokens=12, do_sample=False)  # beyond what it reads at once
        assert text[0].tolist() == own.continued(ids, 12)
        padded = torch.tensor([[0, 0, *ids], [5, 6, *ids]])
        mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
        together = model(padded, attention_mask=mask).logits
        torch.testing.assert_close(together[0, 2:], output.logits[0])
        for refused in (mask.flip(1), torch.tensor([[1, 0, 1, 1, 1], [1] * 5])):  # on the right, in the middle
            with pytest.raises(ValueError, match="pad on the left"):
                model(padded, attention_mask=refused)
        with pytest.raises(ValueError, match="2 rows without attention_mask, which may be padded"):
            model(padded)
        with pytest.raises(ValueError, match="9 tokens: this model reads at most 8"):
            model(torch.zeros(1, 9, dtype=torch.long))
    model.train()
    model(tokens, labels=tokens).loss.backward()
    assert model.get_input_embeddings().weight.grad.any()


def test_what_transformers_saves_is_read(exported, tmp_path):
    pytest.importorskip("transformers", reason='transformers is not installed: pip install -e ".[transformers]"')
    from transformers import AutoModelForCausalLM

    import fourierformer.integrations.hugging_face

    model = AutoModelForCausalLM.from_pretrained(exported[1])
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)  # as if it had been trained further
    model.save_pretrained(tmp_path)
    with pytest.raises(SetupError, match=r"it has no data\.json.* put the data\.json of the export"):
        fourierformer.from_pretrained(tmp_path, "cpu")
    shutil.copy(exported[1] / "data.json", tmp_path)
    own = fourierformer.from_pretrained(tmp_path, "cpu")
    ids = own.encode("word3 word7 word1")
    with torch.inference_mode():
        assert torch.equal(model(torch.tensor([ids])).logits[0], everything(own, ids))


def test_transformers_reads_and_continues_texts_as_we_do(exported):
    pytest.importorskip("transformers", reason='transformers is not installed: pip install -e ".[transformers]"')
    from transformers import AutoTokenizer, pipeline

    import fourierformer.integrations.hugging_face

    own, folder = fourierformer.from_pretrained(exported[1], "cpu"), str(exported[1])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["word3 word7\n\n word1", "word7"]
    batch = tokenizer(texts, padding=True)
    assert batch["input_ids"] == [own.encode(texts[0]), [own.corpus.vocab_size] * 4 + own.encode(texts[1])]
    assert batch["attention_mask"] == [[1] * 5, [0] * 4 + [1]]
    assert tokenizer.decode(batch["input_ids"][0]) == own.decode(own.encode(texts[0]))
    assert tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True) == "word7"
    generate = pipeline("text-generation", model=folder)
    options = {"max_new_tokens": 6, "do_sample": False, "batch_size": 2, "return_tensors": True}
    for text, (answer,) in zip(texts, generate(texts, **options), strict=True):
        assert answer["generated_token_ids"][-6:] == own.continued(own.encode(text), 6)[-6:]
    # transformers decodes the new words alone and puts them behind the prompt, which has to end in a blank
    ((answer,),) = generate(["word7 "], max_new_tokens=6, do_sample=False)
    assert answer["generated_text"] == own.generate("word7", tokens=6, temperature=0)


def test_a_classifier_with_its_classes_and_transform(vision, tmp_path, without_data):
    import timm

    import fourierformer.integrations.timm

    model = fourierformer.load_run(vision, "cpu", averaged=True)
    image = Image.new("L", (50, 40), 128)
    (name, p), *_ = likely = model.classify(image, top=10)
    assert name in model.classes
    assert p == max(p for _, p in likely)
    assert sum(p for _, p in likely) == pytest.approx(1)
    with pytest.raises(TypeError, match=r"must be a PIL image, got str: PIL\.Image\.open"):
        model.classify("image.png")
    shades = np.arange(50 * 40, dtype=np.uint16).reshape(40, 50) // 8
    of_16_bits = Image.fromarray(257 * shades)  # Pillow's own conversion would make it white
    assert model.classify(of_16_bits, top=10) == model.classify(Image.fromarray(shades.astype(np.uint8)), top=10)
    export_run(vision, tmp_path / "model", averaged=True)
    images = model.transform(image.convert("RGB"))[None]
    assert torch.equal(fourierformer.from_pretrained(tmp_path / "model", "cpu").model(images), model.model(images))
    of_timm = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    assert torch.equal(of_timm(images), model.model(images))
    assert of_timm.pretrained_cfg["label_names"] == model.classes
    config = timm.data.resolve_data_config(model=of_timm)
    torch.testing.assert_close(timm.data.create_transform(**config)(image.convert("RGB"))[None], images)


def test_scripts_of_trained_runs_share_their_options():
    helps = {}
    for name in ("generate", "evaluate", "export"):
        command = [sys.executable, f"scripts/{name}.py", "--help"]
        helps[name] = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        assert "--checkpoint {best,last}" in helps[name]
        assert "--weights {raw,ema}" in helps[name]
    assert all("--device" in helps[name] for name in ("generate", "evaluate"))


@pytest.mark.parametrize(
    ("script", "loads"),
    [(generate, "trained.load_run_or_export"), (evaluate, "parts.open_run"), (export, "trained.export_run")],
)
def test_scripts_take_the_checkpoint_and_the_weights_that_were_named(monkeypatch, capsys, script, loads):
    def load(*_, last, averaged, **__):
        raise SetupError(f"{last=} {averaged=}")

    monkeypatch.setattr(f"fourierformer.runs.{loads}", load)
    to = ["--to", "folder"] if script is export else []
    for options, said in ((["--checkpoint", "last"], (True, False)), (["--weights", "ema"], (False, True))):
        monkeypatch.setattr(sys, "argv", ["script.py", "run", *to, *options])
        with pytest.raises(SystemExit):
            script.main()
        assert capsys.readouterr().err == "error: last={} averaged={}\n".format(*said)


def test_what_a_run_keeps_of_its_data(finished, vision):
    facts = read_json(RunDirectory(finished[1]).data_facts)
    assert facts["unit"] == "word"
    assert facts["vocabulary"] == len(facts["words"]) == len(set(facts["words"]))
    assert read_json(RunDirectory(vision).data_facts) == {"classes": [str(digit) for digit in range(10)]}

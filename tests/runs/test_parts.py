"""Building the objects of a run: what one run leaves behind in the process does not reach the next of a sweep."""

import contextlib
import mmap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from fourierformer.config import differences
from fourierformer.errors import SetupError
from fourierformer.processes import Processes
from fourierformer.runs.measure import peak_memory, reset_peak_memory
from fourierformer.runs.parts import MEANING, build_parts, config_notes, pick_device, stored_checkpoint
from fourierformer.runs.train import check_same_backend
from fourierformer.training.checkpoint import Checkpoints
from tests.helpers.command_line import IMAGES, MODEL, spec_of


def parts_of(*overrides: str, script: str = "train_lm"):
    spec = spec_of("trainer.device=cpu", *overrides, script=script)
    return build_parts(spec, Processes(), say=lambda line: None)


@torch._dynamo.config.patch(recompile_limit=1)  # monkeypatch would delete it afterwards
def test_every_run_of_a_sweep_is_compiled(monkeypatch):
    """torch compiles a function for so many cases and then no more; all models share the functions of their layers."""
    compile_ = torch.nn.Module.compile
    for width in (8, 16, 32):
        counter = CompileCounter()
        monkeypatch.setattr(torch.nn.Module, "compile", lambda self, counter=counter: compile_(self, backend=counter))
        parts = parts_of(*MODEL, "data=builtin_text", "trainer.compile=always", f"model.dim={width}")
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        parts.model(tokens, tokens)
        assert counter.frame_count > 0, width


@pytest.mark.parametrize(
    ("changes", "is_meant"),
    [
        (["decoder_attention=gaussian"], True),
        (["cross_attention=gaussian"], True),
        (["data.cutoffs=[5,9]"], True),
        (["attention=gaussian"], True),
        (["attention.radius=1"], False),  # only the first value of a weight
        (["model.dropout=0.2"], False),
        (["optim.lr=1", "data.name=mine"], False),
    ],
)
def test_init_from_refuses_what_changes_the_meaning_of_weights(changes, is_meant):
    start = ("experiment=builtin_seq2seq",) if "attention=" in changes[0].partition("_")[2] else ()
    texts = differences(spec_of(*start).values, spec_of(*start, *changes).values)
    assert texts
    assert any(MEANING.match(text) for text in texts) is is_meant


def test_determinism_is_of_the_run_that_asks_for_it():
    for asked in (True, False):
        parts_of(*MODEL, "data=builtin_text", f"trainer.deterministic={asked}")
        assert torch.are_deterministic_algorithms_enabled() == asked


def test_another_seed_begins_with_other_weights_and_the_same_seed_with_the_same():
    """Whatever the process has drawn before, such as the weights of an earlier job of a sweep."""
    first, again, other = (parts_of(*MODEL, "data=builtin_text", f"seed={seed}").model for seed in (1, 1, 2))
    assert torch.equal(first.layers[0].attention.qkv.weight, again.layers[0].attention.qkv.weight)
    assert not torch.equal(first.layers[0].attention.qkv.weight, other.layers[0].attention.qkv.weight)


@pytest.mark.parametrize(("precision", "digits"), [("bf16", "high"), ("fp32", "highest")])
def test_products_have_the_precision_of_the_run_not_of_the_one_before(precision, digits):
    torch.set_float32_matmul_precision("medium")
    parts_of(*MODEL, "data=builtin_text", f"trainer.precision={precision}")
    assert torch.get_float32_matmul_precision() == digits


@pytest.mark.parametrize(
    ("recorded", "refused"),
    [("compiled on cpu", True), ("torch on cpu", False), ("fused on cuda", False), (None, False)],
)
def test_another_backend_is_refused_on_the_same_kind_of_device_only(recorded, refused, tmp_path):
    """Another device is the user's choice; earlier versions recorded none."""
    here = SimpleNamespace(backend="torch", device=torch.device("cpu"))
    with pytest.raises(SetupError, match="only 'torch' can run") if refused else contextlib.nullcontext():
        check_same_backend(recorded, here, tmp_path)


def test_another_seed_trains_on_other_sequences():
    drawn = []
    for seed in (1, 2):
        parts = parts_of("experiment=recall", "debug=smoke_recall", "attention=softmax", f"seed={seed}")
        (batch, *_) = parts.objective.micro_batches(0)
        drawn.append(batch.sequences.tokens)
    assert not torch.equal(*drawn)


def test_images_are_ordered_repeated_and_mixed_as_the_spec_says_and_by_its_seed():
    changes = ("augment.repeats=2", "augment.mix_batch=4", "trainer.micro_batch_size=null", "data.workers=0")
    drawn, paths = [], []
    for seed in (1, 2):
        objective = parts_of(*IMAGES, *changes, f"seed={seed}", script="train_vit").objective
        indices = objective.order.indices(0)
        assert (indices[::2] == indices[1::2]).all()
        assert len(set(indices)) == 4
        (part,), (batch,) = objective.order.micro_batches(0), objective.micro_batches(0)
        assert [group for group, _, _ in part.pieces] == [0, 1]
        drawn.append(indices)
        paths.append(batch.paths)
        objective.close()
    assert not np.array_equal(*drawn)
    assert not torch.equal(*paths)


def test_a_stored_run_has_its_best_weights_or_on_request_its_last(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3, say=lambda text: None)
    for step in (10, 20, 30):
        checkpoints.save(step, {"model": {}}, best=step == 20)
    assert stored_checkpoint(tmp_path, None)[0] == 20
    assert stored_checkpoint(tmp_path, None, last=True)[0] == 30


def test_peak_memory_is_that_of_one_run():
    device, size = torch.device("cpu"), 300 * 2**20
    with mmap.mmap(-1, size) as memory:  # goes back to the system at once, whatever the allocator keeps
        memory.write(bytes([1]) * size)
    before = peak_memory(device)
    reset_peak_memory()
    after = peak_memory(device)
    if after == before:
        pytest.skip("this system does not forget a peak")
    assert after < before - size / 2


def test_every_gpu_forgets_its_peak(monkeypatch):
    """Also one that is not the current device, as with trainer.device=cuda:1."""
    peaks = {0: 10, 1: 20}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(peaks))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=0: peaks.update({device: 0}))
    reset_peak_memory()
    assert peaks == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("name", "processes", "error"),
    [
        ("cuda", 1, None),
        ("cuda:1", 1, None),
        ("cuda:2", 1, "there are 2 GPUs, counted from cuda:0"),
        ("cuda", 2, None),
        ("cuda:1", 2, "names one device for several processes: use trainer.device=cuda"),
    ],
)
def test_a_numbered_gpu_exists_and_is_of_one_process(monkeypatch, name, processes, error):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("fourierformer.runs.parts.find_processes", lambda: (Processes(world=processes), None))
    if error:
        with pytest.raises(SetupError, match=f"trainer.device={name}:? {error}"):
            pick_device(name)
    else:
        assert pick_device(name) == torch.device(name)


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        (["augment.mixup=0.8"], ["no images are mixed, since augment.mix_probability=0"]),
        (["augment.mixup=0.8", "augment.mix_probability=1"], []),
        (
            ["augment.mixup=0.8", "augment.cutmix=1", "augment.mix_probability=1"],
            ["augment.cutmix has no effect with augment.mix_switch=0"],
        ),
        ([], []),
    ],
)
def test_mixing_without_effect_is_noted(changes, notes):
    assert config_notes(spec_of(*changes, script="train_vit"), steps_per_epoch=10) == notes


@pytest.mark.parametrize(("rate", "rises"), [(1e-6, True), (1e-5, False), (1e-4, False)])
def test_a_rate_that_rises_to_its_lowest_value_is_noted(rate, rises):
    """DeiT's schedule ends at 1e-5: in a sweep over small rates, all would train up to that one."""
    spec = spec_of("experiment=cifar10_deit", f"optim.lr={rate}", script="train_vit")
    note = "the rate rises from optim.lr=1e-06 to schedule.min_lr=1e-05: schedule.min_lr=1e-08"
    assert config_notes(spec, steps_per_epoch=100) == [note] * rises

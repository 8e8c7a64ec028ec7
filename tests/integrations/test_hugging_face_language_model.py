"""Our language models in transformers, with every attention: loading builds on the meta device, so that whatever a
mechanism keeps outside of its weights has to come back."""

import json

import pytest
import torch

pytest.importorskip("transformers", reason='transformers is not installed: pip install -e ".[transformers]"')

from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import fourierformer
import fourierformer.integrations.hugging_face
from fourierformer.attention import available
from fourierformer.runs.spec import attention_of, task_of
from fourierformer.runs.trained import without_paths
from tests.helpers.command_line import spec_of

SMALL = ["model.layers=2", "model.dim=32", "model.heads=2", "model.inner=16", "model.length=8", "seed=3"]
FACTS = {"unit": "byte", "vocabulary": 256, "words": None, "source": None, "sequence": None}
NAMES = ["alibi", "bigbird", "fourier", "performer"]  # slopes, patterns, what is watched, random features
REST = pytest.mark.full("every attention")


EVERY = pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(n, marks=REST) for n in available(causal=True, grid=False) if n not in NAMES)]
)


def exported(folder, name, *more):
    """A new model, as scripts/export.py writes it into the folder."""
    overrides = [*SMALL, f"attention={name}", *(["attention.aft_heads=4"] if name == "aft_conv" else []), *more]
    spec = spec_of(*overrides)
    task = task_of(spec)
    corpus = task.corpus_of(spec, FACTS)
    model = task.build_model(spec, attention_of(spec), corpus).eval()
    config = {"run": without_paths(spec.values), "step": 1} | task.export_config(spec, model, corpus)
    save_file({key: value.clone() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "data.json").write_text(json.dumps(FACTS))
    return model


@EVERY
def test_it_comes_back_bit_by_bit(name, tmp_path):
    model = exported(tmp_path, name)
    tokens = torch.randint(0, 256, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.next_token(tokens)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        of_transformers = loaded(tokens, torch.ones_like(tokens), logits_to_keep=1).logits[:, 0]
        assert torch.equal(of_transformers, expected)
        assert torch.equal(fourierformer.from_pretrained(tmp_path, "cpu").model.next_token(tokens), expected)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_whatever_is_not_saved_is_rounded_once(name, dtype, tmp_path):
    """transformers builds the model with that type as torch's default, in which angles of hundreds have no digits."""
    exported(tmp_path, name, "model.length=512")
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path).to(dtype)
    buffers = dict(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).named_buffers())
    for key, expected in rounded.named_buffers():
        found = buffers[key].to(expected.dtype)  # some stay in float32
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=key)

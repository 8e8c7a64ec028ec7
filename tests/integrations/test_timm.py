"""Our models in timm's registry."""

import subprocess
import sys
from dataclasses import fields

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2

import fourierformer.integrations.timm  # noqa: F401 - registers our models
from fourierformer.errors import SetupError
from fourierformer.models.config import Switches
from fourierformer.runs.spec import attention_of, task_of
from tests.helpers.command_line import REPOSITORY, spec_of

TINY, SMALL = "fourierformer_tiny_patch16_224", "fourierformer_small_patch16_224"


def create(name=TINY, **values):
    return timm.create_model(name, **{"img_size": 32, "patch_size": 8, "num_classes": 10} | values)


def fresh_python(code: str) -> str:
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]  # timm warns of a name registered twice
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.full("imports timm in processes of their own")
@pytest.mark.parametrize("imports", ["timm, fourierformer.integrations.timm", "fourierformer.integrations.timm, timm"])
def test_any_import_order_registers(imports):
    code = f"import {imports}; print(timm.list_models('fourierformer*'), timm.is_model('{TINY}'))"
    assert fresh_python(code) == f"{[SMALL, TINY]} True"


def test_importing_the_package_imports_neither_torch_nor_timm():
    code = "import sys, fourierformer; print([n for n in ('torch', 'timm', 'numpy') if n in sys.modules])"
    assert fresh_python(code) == "[]"


@pytest.mark.parametrize(("name", "peer"), [(TINY, "deit_tiny_patch16_224"), (SMALL, "deit_small_patch16_224")])
def test_shapes_are_deits_and_one_radius_per_layer(name, peer):
    with torch.device("meta"):
        ours, theirs = timm.create_model(name).state_dict(), timm.create_model(peer).state_dict()
    added = {key for key in ours if key.endswith("radius")}
    assert added == {f"blocks.{i}.attn.radius" for i in range(12)}
    assert {key: ours[key].shape for key in ours.keys() - added} == {key: p.shape for key, p in theirs.items()}


def test_a_model_made_without_memory_is_not_initialised_in_part():
    with torch.device("meta"):
        model = create()
    with pytest.raises(SetupError, match="build the model again, or load weights"):
        model.to_empty(device="cpu").init_weights()


def test_timms_usual_arguments():
    model = create(in_chans=1, num_classes=7, drop_rate=0.2, drop_path_rate=0.3, img_size=(32, 32))
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    assert model.head_drop.p == 0.2
    assert model.blocks[-1].drop_path2.rate == pytest.approx(0.3)
    assert timm.create_model(TINY, num_classes=0, img_size=32)(torch.randn(1, 3, 32, 32)).shape == (1, 192)


def test_attention_and_its_knobs_can_be_chosen():
    model = create(attention="fourier_head", attention_knobs={"radius": 1.5})
    assert torch.equal(model.blocks[0].attn.radius, torch.full((3, 1), 1.5))
    assert not any("radius" in key for key in create(attention="softmax").state_dict())


SWITCHES = {"qk_norm": "l2", "gate": "head", "value_residual": 0.6}


@pytest.mark.parametrize("switch", [field.name for field in fields(Switches)])
def test_an_exported_classifier_keeps_its_switches(switch):
    spec = spec_of("model=vit_tiny", f"model.{switch}={SWITCHES[switch]}", script="train_vit")
    task = task_of(spec)
    corpus = task.corpus_of(spec, {"classes": ["a", "b"]})
    model = task.build_model(spec, attention_of(spec), corpus).eval()
    config = task.export_config(spec, model, corpus)
    again = timm.create_model(config["architecture"], num_classes=2, **config["model_args"]).eval()
    again.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, spec.model.image_size, spec.model.image_size)
    assert torch.equal(again(images), model(images))


def test_the_data_config_is_the_papers():
    config = timm.data.resolve_data_config(model=create())
    assert config["crop_pct"] == pytest.approx(224 / 256)
    assert (config["interpolation"], config["mean"], config["std"]) == (
        "bicubic",
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pretrained": True}, "fourierformer_tiny_patch16_224 has no pretrained weights"),
        ({"img_size": (32, 64)}, "img_size=(32, 64): these models take square images"),
        ({"img_size": "32"}, "img_size='32': these models take square images"),
        ({"patch_size": (4, 8)}, "patch_size=(4, 8): these models take square images and patches"),
        ({"attention": "forier"}, "did you mean 'fourier'"),
        ({"attention_knobs": {"radios": 1}}, "attention 'fourier' has no knob 'radios' (did you mean 'radius'?)"),
        ({"patch_size": 5}, "model.image_size=32 must be divisible by model.patch=5"),
    ],
)
def test_mistakes_are_explained(values, message):
    with pytest.raises(SetupError) as error:
        create(**values)
    assert message in str(error.value)


def test_sizes_may_be_pairs_as_in_timm():
    model = create(img_size=(32, 32), patch_size=(8, 8))
    assert model.patch_embed.patch_size == (8, 8)
    assert model(torch.randn(1, 3, 32, 32)).shape == create()(torch.randn(1, 3, 32, 32)).shape


def test_it_trains_with_timms_optimizer_and_no_radius_decays():
    model = create(attention="fourier_vector")
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decays[id(block.attn.radius)] for block in model.blocks} == {0.0}
    assert decays[id(model.blocks[0].attn.qkv.weight)] == 0.05
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optimizer.step()


def test_the_image_size_is_chosen_when_the_model_is_built():
    with pytest.raises(SetupError, match="build the model again with img_size="):
        create().set_input_size(img_size=64)

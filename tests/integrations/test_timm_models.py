"""What timm's own tests ask of every model (its tests/test_models.py), asked of ours; and the way through its files."""

import dataclasses
from functools import partial

import pytest
import timm
import torch
from timm.models import save_for_hf

import fourierformer.integrations.timm  # noqa: F401 - registers our models
from fourierformer.attention import build
from fourierformer.errors import SetupError
from fourierformer.models.vit import build_vit

NAMES = ["fourierformer_tiny_patch16_224", "fourierformer_small_patch16_224"]
SMALL = {"img_size": 32, "patch_size": 8, "depth": 3, "num_classes": 5}
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def create(name=NAMES[0], **options):
    torch.manual_seed(0)
    return timm.create_model(name, **(SMALL | options))


@pytest.mark.parametrize("name", NAMES)
def test_forward_backward_and_names_of_its_config(name):
    model = create(name)
    output = model(IMAGES)
    assert output.shape == (2, 5)
    assert output.isfinite().all()
    output.mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    config, state = model.default_cfg, model.state_dict()
    assert config["classifier"] + ".weight" in state
    assert config["first_conv"] + ".weight" in state
    assert config["architecture"] == name
    assert len(model.blocks) == 3


def test_its_head_can_be_left_out_and_replaced():
    """With and without a head, pooled and not, as timm asks of default_cfgs."""
    model = create(num_classes=10).eval()
    features = model.forward_features(IMAGES)
    assert features.shape == (2, 17, model.num_features)
    assert torch.equal(model.forward_head(features), model(IMAGES))
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    model.reset_classifier(0)
    assert model(IMAGES).shape == (2, model.num_features)
    model.reset_classifier(0, "")
    assert torch.equal(model(IMAGES), features)
    assert create(num_classes=0)(IMAGES).shape == (2, model.num_features)
    model.reset_classifier(7, "avg")
    assert model(IMAGES).shape == (2, 7)


@pytest.mark.parametrize(
    ("options", "tokens", "pooled"),
    [
        ({}, 17, lambda x: x[:, 0]),
        ({"global_pool": "avg"}, 17, lambda x: x[:, 1:].mean(1)),
        ({"class_token": False}, 16, lambda x: x.mean(1)),
    ],
)
def test_pooling_is_what_its_name_says(options, tokens, pooled):
    model = create(**options).eval()
    features = model.forward_features(IMAGES)
    assert features.shape[1] == tokens
    torch.testing.assert_close(model(IMAGES), model.head(model.fc_norm(pooled(features))))


def test_its_blocks_are_as_wide_as_told_and_it_may_have_no_positions():
    """Without positions and a class token, patches in another order have the same mean."""
    options = {"class_token": False, "mlp_ratio": 2.0}
    model, with_positions = create(**options, pos_embed="none").eval(), create(**options).eval()
    assert model.blocks[0].mlp.fc1.weight.shape == (2 * 192, 192)
    rolled = IMAGES.roll(8, dims=-1)  # by a patch
    torch.testing.assert_close(model(rolled), model(IMAGES), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(with_positions(rolled), with_positions(IMAGES), rtol=1e-4, atol=1e-5)


NAMES_OF_ATTENTION = ["fourier_head", "elliptical", "residual_scores"]  # the last two need values or logits of others
ATTENTIONS = pytest.mark.parametrize("attention", NAMES_OF_ATTENTION)


@ATTENTIONS
def test_intermediate_features(attention):
    """features_only, forward_intermediates and a pruned model agree; the last one with its norm is forward_features."""
    model = create(attention=attention).eval()
    extractor = create(attention=attention, features_only=True, out_indices=(0, 2)).eval()
    shallow, deep = extractor(IMAGES)
    assert extractor.feature_info.channels() == [192, 192]
    assert extractor.feature_info.reduction() == [8, 8]
    assert shallow.shape == deep.shape == (2, 192, 4, 4)
    last, between = model.forward_intermediates(IMAGES, indices=[0, 2])
    assert torch.equal(between[0], shallow)
    assert torch.equal(between[1], deep)
    torch.testing.assert_close(last, model.forward_features(IMAGES))
    model.prune_intermediate_layers([0])
    assert len(model.blocks) == 1
    assert torch.equal(model.forward_intermediates(IMAGES, indices=[0], intermediates_only=True)[0], shallow)


def with_value_residual():
    torch.manual_seed(0)
    config = dataclasses.replace(create().config, value_residual=0.6)
    return build_vit(config, 5, partial(build, "softmax"))


MODELS = [
    *(partial(create, attention=a) for a in ("fourier_head", "elliptical", "residual_scores")),
    with_value_residual,
]


@pytest.mark.parametrize("make", MODELS)
def test_recomputing_activations_changes_nothing(make):
    model, calls = make(), []
    model(IMAGES).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.set_grad_checkpointing(True)
    model.blocks[1].norm1.register_forward_hook(lambda *_: calls.append(1))
    model(IMAGES).square().mean().backward()
    assert len(calls) == 2  # again in the backward pass
    for gradient, parameter in zip(expected, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-8)
    model.set_grad_checkpointing(False)
    model(IMAGES).square().mean().backward()
    assert len(calls) == 3


def test_intermediate_features_with_values_of_the_first_block():
    model = with_value_residual().eval()
    last, between = model.forward_intermediates(IMAGES, output_fmt="NLC")
    torch.testing.assert_close(last, model.forward_features(IMAGES))
    torch.testing.assert_close(model.norm(between[-1]), last[:, 1:])
    assert not model.blocks[0]._forward_pre_hooks


@pytest.mark.parametrize("safe", [True, False])
def test_saved_for_the_hub_and_created_again(tmp_path, safe):
    model = create(attention_knobs={"eps": 0.0, "radius": 1.5}, global_pool="avg", mlp_ratio=2.0).eval()
    save_for_hf(model, tmp_path, safe_serialization=safe)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert torch.equal(again(IMAGES), model(IMAGES))
    assert again.blocks[0].attn.eps == 0.0
    assert timm.data.resolve_data_config(model=again)["input_size"] == (3, 32, 32)
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=3).eval()
    assert torch.equal(other.forward_features(IMAGES), model.forward_features(IMAGES))
    assert other(IMAGES).shape == (2, 3)


def test_a_config_of_ones_own():
    model = create(pretrained_cfg={"crop_pct": 0.5, "mean": (0.1, 0.2, 0.3), "input_size": (3, 32, 32)})
    config = timm.data.resolve_data_config(model=model)
    assert (config["crop_pct"], config["mean"]) == (0.5, (0.1, 0.2, 0.3))


def test_an_unknown_argument_is_named():
    with pytest.raises(SetupError, match=r"has no argument 'dept' \(did you mean 'depth'\?\)"):
        create(dept=3)
    with pytest.raises(SetupError, match="pos_embed is 'learn' or 'none', got 'rope'"):
        create(pos_embed="rope")


def test_a_tracer_finds_the_features_of_inner_layers():
    """torchvision's extractor traces the model; an attention is a node of its graph."""
    from torchvision.models.feature_extraction import create_feature_extractor

    model = create().eval()
    leaves = {"leaf_modules": timm.models.get_notrace_modules()}
    inner = create_feature_extractor(model, {"blocks.0.attn": "mixed", "head": "logits"}, tracer_kwargs=leaves)
    seen = []
    model.blocks[0].attn.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model(IMAGES)
    found = inner(IMAGES)
    torch.testing.assert_close(found["logits"], logits)
    torch.testing.assert_close(found["mixed"], seen[0])

"""Muon steps along the orthogonal factor of linear maps inside layers; AdamW does everything else."""

import copy
import math
from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.errors import SetupError
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.models.vit import ViTConfig, build_vit
from fourierformer.training.config import OptimConfig
from fourierformer.training.optim import build_optimizer, guarded_step, set_learning_rate

LR, DECAY = 0.01, 0.1
MUON, ADAMW = (
    OptimConfig(name=name, lr=LR, betas=[0.9, 0.99], eps=1e-8, weight_decay=DECAY) for name in ("muon", "adamw")
)
SHAPE = LMConfig(name="t", layers=2, dim=16, heads=2, inner=32, length=8, dropout=0.0)
MATRICES = ("attention.qkv", "attention.proj", "feed_forward.0", "feed_forward.3")
NO = torch.tensor(0.0)


def language_model() -> WordLM:
    torch.manual_seed(0)
    return WordLM(SHAPE, 30, [10, 20], partial(attention.build, "fourier_vector", radius_lr_multiplier=5.0))


def with_gradients(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    return model


def trained(config: OptimConfig, steps: int = 2) -> dict[str, torch.Tensor]:
    model = language_model()
    optimizer = build_optimizer(model, config)
    set_learning_rate(optimizer, LR)
    for seed in range(steps):
        with_gradients(model, seed)
        guarded_step(optimizer, NO)
    return dict(model.named_parameters())


def test_linear_maps_inside_layers_are_muons_and_the_rest_is_adamws():
    muon, adamw, start = trained(MUON), trained(ADAMW), dict(language_model().named_parameters())
    matrices = {f"layers.{layer}.{name}.weight" for layer in range(2) for name in MATRICES}
    differ = {name for name in muon if not torch.equal(muon[name], adamw[name])}
    assert differ == matrices
    assert muon["layers.0.attention.radius"].dim() == 2  # a matrix that is no linear map
    assert not any(torch.equal(muon[name], start[name]) for name in muon)


def test_images_leave_patches_and_classes_to_adamw():
    shape = ViTConfig(name="t", image_size=8, patch=4, dim=16, depth=1, heads=2, mlp_ratio=2.0, drop_path=0.0)
    model = build_vit(shape, 10, partial(attention.build, "softmax"))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build_optimizer(model, MUON).parts["muon"].param_groups
    found = {names[id(parameter)] for group in groups for parameter in group["params"]}
    assert found == {f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}


def test_a_model_without_such_maps_is_refused():
    with pytest.raises(SetupError, match=r"no layer of this model has a linear map, .* take optim=adamw"):
        build_optimizer(torch.nn.Linear(2, 2), MUON)


def test_a_first_step_is_the_orthogonal_factor_at_the_size_of_adamws():
    """Its direction is U V^T of the gradient: singular values of one size, singular vectors those of the gradient."""
    before, after = dict(language_model().named_parameters()), trained(MUON, steps=1)
    gradients = {name: p.grad.double() for name, p in with_gradients(language_model(), 0).named_parameters()}
    for name in MATRICES:
        key = f"layers.1.{name}.weight"
        u, _, v = torch.linalg.svd(gradients[key], full_matrices=False)
        step = (before[key].double() * (1 - LR * DECAY) - after[key].double()).detach()
        inner = u.T @ step @ v.T / (LR * 0.2 * math.sqrt(max(step.shape)))
        # five iterations in bfloat16 bring the singular values of a matrix near 1, not to 1 (Jordan 2024)
        assert 0.5 < inner.diagonal().min() < inner.diagonal().max() < 1.3
        assert (inner - inner.diagonal().diag()).abs().max() < 0.1


def test_a_step_with_numbers_that_are_not_finite_changes_nothing():
    model = with_gradients(language_model(), 0)
    optimizer = build_optimizer(model, MUON)
    guarded_step(optimizer, NO)
    before = copy.deepcopy((model.state_dict(), list(optimizer.state.values())))
    for parameter in model.parameters():
        parameter.grad.fill_(math.nan)
    guarded_step(optimizer, torch.tensor(1.0))
    torch.testing.assert_close((model.state_dict(), list(optimizer.state.values())), before, rtol=0, atol=0)


@pytest.mark.parametrize("through_bytes", [False, True])
def test_it_goes_on_from_its_state(through_bytes, tmp_path):
    whole = trained(MUON, steps=3)
    model = language_model()
    first = build_optimizer(model, MUON)
    set_learning_rate(first, LR)
    for seed in range(2):
        with_gradients(model, seed)
        guarded_step(first, NO)
    state = first.state_dict()
    if through_bytes:  # as a checkpoint is read
        torch.save(state, tmp_path / "state")
        state = torch.load(tmp_path / "state", weights_only=True)
    second = build_optimizer(model, MUON)
    second.load_state_dict(state)
    set_learning_rate(second, LR)
    with_gradients(model, 2)
    guarded_step(second, NO)
    second.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(dict(model.named_parameters()), whole, rtol=0, atol=0)

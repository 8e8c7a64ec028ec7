"""FGM and PGD against laws of linear models and a plain loop over images, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fourierformer.analysis.attacks import ATTACKS, Attack, ball_around, perturbation, random_starts

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
FGM, PGD = ATTACKS["fgm"], ATTACKS["pgd"]
SHAPE = (3, 4, 4)


def normalised_images(count: int, extremes: bool = False) -> torch.Tensor:
    pixels = torch.rand(count, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pixels = (2 * pixels - 0.5).clamp(0, 1) if extremes else pixels  # half of them black or white
    return (pixels - values(MEAN)) / values(STD)


def values(of: list[float]) -> torch.Tensor:
    return torch.tensor(of, dtype=torch.float64).view(3, 1, 1)


def pixels_of(images: torch.Tensor) -> torch.Tensor:
    return images * values(STD) + values(MEAN)


def curved(classes: int = 5) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Flatten(), nn.Linear(48, 30), nn.Tanh(), nn.Linear(30, classes))
    return nn.Sequential(*layers).double()


def ball(images: torch.Tensor, eps: float, space: str = "normalised"):
    return ball_around(images, eps, space, MEAN, STD)


def gradient(model: nn.Module, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    image = image.clone().requires_grad_()
    (found,) = torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), image)
    return found


@pytest.mark.parametrize("eps", [0.001, 0.1, 3.0])
def test_fgm_on_a_linear_model_moves_the_margin_by_eps_times_the_norm_of_the_weights(eps):
    """Two classes: the loss is softplus(-margin), and no change in the ball lowers the margin further (Hoelder)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).double()
    images, labels = normalised_images(6), torch.tensor([0, 1, 1, 0, 1, 0])
    change = perturbation(model, images, labels, FGM, ball(images, eps))
    weights = model[1].weight[1] - model[1].weight[0]
    logits = model(images)
    margins = logits.gather(1, labels[:, None])[:, 0] - logits.gather(1, 1 - labels[:, None])[:, 0]
    after = F.cross_entropy(model(images + change), labels, reduction="none")
    torch.testing.assert_close(after, F.softplus(eps * weights.abs().sum() - margins))


def test_fgm_has_the_norm_eps_and_raises_the_loss_by_eps_times_the_norm_of_the_gradient_to_first_order():
    model, images, labels, eps = curved(), normalised_images(6), torch.tensor([0, 1, 2, 3, 4, 0]), 1e-5
    change = perturbation(model, images, labels, FGM, ball(images, eps))
    gradients = torch.stack([gradient(model, *pair) for pair in zip(images, labels, strict=True)])
    assert torch.equal(change, eps * gradients.sign())
    torch.testing.assert_close(change.abs().amax((1, 2, 3)), torch.full((6,), eps, dtype=torch.float64))
    losses = [F.cross_entropy(model(x), labels, reduction="none") for x in (images, images + change)]
    torch.testing.assert_close(losses[1] - losses[0], eps * gradients.abs().sum((1, 2, 3)), rtol=1e-3, atol=0)


@pytest.mark.parametrize("space", ["normalised", "pixel"])
@pytest.mark.parametrize("attack", [FGM, PGD])
def test_an_eps_of_0_changes_nothing(attack, space):
    images = normalised_images(4, extremes=True).float()
    start = random_starts(images, torch.arange(4), 0)
    change = perturbation(curved().float(), images, torch.arange(4), attack, ball(images, 0.0, space), start)
    assert torch.equal(images + change, images)


@pytest.mark.parametrize("lead", [0.0, 10.0, 20.0, 200.0])
def test_fgm_in_float16_moves_images_against_the_weights_however_confident_the_model_is(lead):
    """Two classes, loss softplus(-margin): the other class has a probability of exp(-lead), and a number below 3e-8 is
    0 in float16. At 200 it is 0 in float32 too: no gradient is left, and no NaN may take its place."""
    model, images, labels = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), torch.zeros(2, *SHAPE), torch.tensor([0, 1])
    signs = 1.0 - 2 * (torch.arange(48) % 3 == 0)
    model[1].weight.data = torch.stack([-signs, signs]) / 10
    change = torch.zeros_like(images)
    for i, label in enumerate(labels):
        model[1].bias.data = lead * F.one_hot(label, 2).float()
        with torch.autocast("cpu", dtype=torch.float16):
            change[i] = perturbation(model, images[i, None], label[None], FGM, ball(images, 1.0))[0]
    expected = torch.stack([signs, -signs]).view(images.shape)
    assert torch.equal(change, expected if lead < 100 else torch.zeros_like(change))


def literal_pgd(model, image, label, steps, step, eps, start, space):
    """One image, its value in the units of the space, where a change of eps is the same for each channel."""
    scale, shift = (STD, MEAN) if space == "pixel" else ([1.0] * 3, [0.0] * 3)
    scale, shift = values(scale), values(shift)
    original = image * scale + shift
    now = original + eps * start
    for number in range(steps + 1):
        now = torch.maximum(torch.minimum(now, original + eps), original - eps)
        if space == "pixel":
            now = now.clamp(0, 1)
        if number < steps:
            now = now + step * eps * gradient(model, (now - shift) / scale, label).sign()
    return (now - shift) / scale


@pytest.mark.parametrize("space", ["normalised", "pixel"])
@pytest.mark.parametrize("attack", [PGD, Attack(3, 0.7, random_start=True)])
def test_pgd_is_the_loop_over_images_and_steps(attack, space):
    model, images, labels = curved(), normalised_images(5, extremes=True), torch.arange(5)
    start = random_starts(images, labels, 7)
    found = images + perturbation(model, images, labels, attack, ball(images, 0.05, space), start)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        expected = literal_pgd(model, image, label, attack.steps, attack.step, 0.05, start[i], space)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", ["normalised", "pixel"])
def test_pgd_of_one_step_of_eps_from_the_image_is_fgm(space):
    model, images, labels = curved(), normalised_images(5, extremes=True), torch.arange(5)
    fgm = images + perturbation(model, images, labels, FGM, ball(images, 0.05, space))
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        one = literal_pgd(model, image, label, 1, 1.0, 0.05, torch.zeros(SHAPE), space)
        torch.testing.assert_close(fgm[i], one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attack", [FGM, PGD])
def test_in_pixel_space_images_stay_in_the_ball_and_in_the_range_of_pixels(attack):
    model, images, labels, eps = curved(), normalised_images(5, extremes=True), torch.arange(5), 8 / 255
    start = random_starts(images, labels, 0) if attack.random_start else None
    moved = {
        space: pixels_of(images + perturbation(model, images, labels, attack, ball(images, eps, space), start))
        for space in ("pixel", "normalised")
    }
    before = pixels_of(images)
    assert (moved["pixel"] - before).abs().max() == pytest.approx(eps)
    assert moved["pixel"].min() >= -1e-12
    assert moved["pixel"].max() <= 1 + 1e-12
    # normalised: eps counts standard deviations, and the images leave the range of pixels
    for channel, std in enumerate(STD):
        assert (moved["normalised"] - before)[:, channel].abs().max() == pytest.approx(eps * std)
    assert moved["normalised"].min() < 0
    assert moved["normalised"].max() > 1


def test_a_random_start_depends_on_the_seed_and_the_image_alone():
    images = torch.zeros(4, *SHAPE)
    together = random_starts(images, torch.tensor([3, 1, 4, 5]), 0)
    apart = random_starts(images[:2], torch.tensor([4, 3]), 0)
    assert torch.equal(apart, together[[2, 0]])
    assert not torch.equal(random_starts(images, torch.tensor([3, 1, 4, 5]), 1), together)
    assert len({start.sum().item() for start in together}) == 4
    assert together.abs().max() <= 1
    assert together.min() < -0.9
    assert together.max() > 0.9

"""Perturbed images that raise a classifier's loss: FGM and PGD, as papers on attention as kernel regression attack.

fgm: x + eps sign(g), one step along the gradient g of the loss (Goodfellow et al. 2015, arXiv 1412.6572).
pgd: 20 steps of .15 eps, each back into the ball |x' - x| <= eps, from a random point of it (Madry et al. 2018, arXiv
     1706.06083).

The papers' code calls cleverhans on normalised images and clips nothing: eps = 1/255 is .225/255 in pixel values of
ImageNet. That is space `normalised`. In space `pixel` eps counts pixel values in [0, 1], and the images stay in that
range. Their labels are the model's own predictions: an image that it gets wrong is pushed away from a wrong class,
perhaps to the right one. `true` takes the labels of the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.seeds import seed_of


@dataclass(frozen=True)
class Attack:
    steps: int
    step: float  # the length of a step in units of eps
    random_start: bool


ATTACKS = {"fgm": Attack(1, 1.0, random_start=False), "pgd": Attack(20, 0.15, random_start=True)}
SPACES = ("normalised", "pixel")
LABELS = ("predicted", "true")


@dataclass(frozen=True)
class Ball:
    """What may be added to each of some normalised images: -eps to eps, in the units of a space, within its range."""

    radius: Tensor  # (3, 1, 1)
    low: Tensor  # (B, 3, size, size)
    high: Tensor

    def nearest(self, change: Tensor) -> Tensor:
        return change.clamp(self.low, self.high)


def ball_around(images: Tensor, eps: float, space: str, mean: Sequence[float], std: Sequence[float]) -> Ball:
    """The ball around images that were normalised as (pixel - mean) / std."""
    centre, scale = (images.new_tensor(list(values)).view(-1, 1, 1) for values in (mean, std))
    radius = eps / scale if space == "pixel" else torch.full_like(scale, eps)
    low, high = -radius.expand_as(images), radius.expand_as(images)
    if space == "pixel":
        # 0 lies in it also where rounding has put a pixel a little out of its range
        low = torch.maximum(low, (-centre / scale - images).clamp(max=0.0))
        high = torch.minimum(high, ((1 - centre) / scale - images).clamp(min=0.0))
    return Ball(radius, low, high)


def perturbation(
    model: nn.Module, images: Tensor, labels: Tensor, attack: Attack, ball: Ball, start: Tensor | None = None
) -> Tensor:
    """What the attack adds to the images. `start`: the point where it begins, -1 to 1 in units of the radius."""
    change = torch.zeros_like(images) if start is None else ball.nearest(start * ball.radius)
    for _ in range(attack.steps):
        with torch.enable_grad():
            moved = (images + change).requires_grad_()
            logits = model(moved).float()
            losses = F.cross_entropy(logits, labels, reduction="none") * _scales(logits.detach(), labels)
            # a sum: the gradient of an image does not depend on the others
            (gradient,) = torch.autograd.grad(losses.sum(), moved)
        change = ball.nearest(change + attack.step * ball.radius * gradient.sign())
    return change


def _scales(logits: Tensor, labels: Tensor) -> Tensor:
    """A factor for each image's loss (B,): the power of 2 that brings the largest gradient with respect to the logits
    into [1/2, 1). Without it float16 rounds the gradient of a confident image, 1e-7, to 0. Signs do not change."""
    gradients = logits.softmax(1) - F.one_hot(labels, logits.shape[1])
    largest = gradients.abs().amax(1).clamp_min(torch.finfo(gradients.dtype).tiny)
    return largest.frexp().mantissa / largest


def random_starts(images: Tensor, rows: Tensor, seed: int) -> Tensor:
    """A random point in [-1, 1] for each image, from the seed and the number of the image in its split."""
    generator = torch.Generator()
    draws = []
    for row in rows.tolist():
        generator.manual_seed(seed_of("attack", seed, row))
        draws.append(2 * torch.rand(images.shape[1:], generator=generator, dtype=images.dtype) - 1)
    return torch.stack(draws).to(images.device)

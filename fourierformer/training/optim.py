"""torch's fused optimizers, with parameter groups from the marks of parameters."""

import inspect
from collections.abc import Collection

import torch
from torch import nn

from fourierformer.marks import marks_of
from fourierformer.training.config import OptimConfig


class _WithoutCompiler(torch.optim.Optimizer):
    """torch's own methods without the wrappers against torch.compile, whose first call imports the compiler: two
    seconds, also in a run that compiles nothing. No optimizer is compiled here."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class Adam(_WithoutCompiler, torch.optim.Adam):
    """torch.optim.Adam."""


class AdamW(_WithoutCompiler, torch.optim.AdamW):
    """torch.optim.AdamW."""


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer of a config, with the marks of parameters: `no_weight_decay`, and `lr_multiplier` for its rate.
    Vectors, biases and the parameters in the model's `no_weight_decay()` are not decayed either, as in timm. Fused,
    because fused optimizers skip a step on the device if `found_inf` is set: no host sync to guard a step."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    undecayed: Collection[str] = getattr(model, "no_weight_decay", tuple)()
    marks = marks_of(model)
    for name, parameter in model.named_parameters():
        mark = marks[name]
        decays = parameter.dim() > 1 and not mark.no_weight_decay and name not in undecayed
        key = (config.weight_decay if decays else 0.0, mark.lr_multiplier)
        groups.setdefault(key, []).append(parameter)
    described = [{"params": p, "weight_decay": decay, "lr_multiplier": m} for (decay, m), p in groups.items()]
    cls = {"adam": Adam, "adamw": AdamW}[config.name]
    return cls(described, lr=config.lr, betas=tuple(map(float, config.betas)), eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_multiplier"]


def guarded_step(optimizer: torch.optim.Optimizer, bad: torch.Tensor) -> None:
    """optimizer.step(), without effect if the float tensor `bad` is 1 on its device: by `grad_scale` and `found_inf`,
    as torch's own GradScaler makes fused optimizers skip a step."""
    # torch's annotations of Optimizer lack both
    optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]

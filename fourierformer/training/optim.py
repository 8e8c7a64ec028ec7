"""torch's optimizers, fused where they can be, with parameter groups from the marks of parameters."""

import inspect
from collections.abc import Collection

import torch
from torch import nn

from fourierformer.errors import SetupError
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


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for the matrices, AdamW for all other parameters, as one optimizer: steps along U V^T of the
    momentum's singular value decomposition (Jordan 2024), scaled to the size of AdamW's steps (Liu et al. 2025, arXiv
    2502.16982), so that both share a learning rate. momentum: Muon's own, 0.95."""

    def __init__(self, matrices: list[dict], others: list[dict], **options):
        muon = torch.optim.Muon(matrices, lr=options["lr"], adjust_lr_fn="match_rms_adamw")
        self.parts = {"muon": muon, "adamw": AdamW(others, **options)}

    @property
    def param_groups(self) -> list[dict]:  # type: ignore[override]
        return [group for part in self.parts.values() for group in part.param_groups]

    @property
    def state(self) -> dict:  # type: ignore[override]
        return {parameter: state for part in self.parts.values() for parameter, state in part.state.items()}

    def step(self, closure=None):
        if getattr(self, "found_inf", None):  # Muon is not fused: the host reads it
            return
        for part in self.parts.values():
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts.values():
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])


def _matrices(model: nn.Module) -> set[str]:
    """Weights of the linear maps inside the layers of a model, which Muon trains. Embeddings and the last map, a child
    of the model itself, are left to AdamW."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and "." in name]
    return {f"{name}.weight" for name in linear}


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer of a config, with the marks of parameters: `no_weight_decay`, and `lr_multiplier` for its rate.
    Vectors, biases and the parameters in the model's `no_weight_decay()` are not decayed either, as in timm. Fused,
    because fused optimizers skip a step on the device if `found_inf` is set: no host sync to guard a step."""
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    matrices = _matrices(model) if config.name == "muon" else ()
    undecayed: Collection[str] = getattr(model, "no_weight_decay", tuple)()
    marks = marks_of(model)
    for name, parameter in model.named_parameters():
        mark = marks[name]
        decays = parameter.dim() > 1 and not mark.no_weight_decay and name not in undecayed
        key = (name in matrices, config.weight_decay if decays else 0.0, mark.lr_multiplier)
        groups.setdefault(key, []).append(parameter)
    described: dict[bool, list[dict]] = {True: [], False: []}
    for (is_matrix, decay, multiplier), parameters in groups.items():
        described[is_matrix].append({"params": parameters, "weight_decay": decay, "lr_multiplier": multiplier})
    options = {"lr": config.lr, "betas": tuple(map(float, config.betas)), "eps": config.eps, "fused": True}
    if config.name == "muon":
        if not described[True]:
            raise SetupError("optim=muon: no layer of this model has a linear map, which Muon trains: take optim=adamw")
        return Muon(described[True], described[False], **options)
    return {"adam": Adam, "adamw": AdamW}[config.name](described[False], **options)


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

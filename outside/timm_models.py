"""timm, tests/test_models.py: our models do what timm's do."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from outside.cases import Case, load, skip

TIMM_CASES = (  # functions of tests/test_models.py, with their batch sizes
    *(("test_model_forward", 1), ("test_model_backward", 2), ("test_model_default_cfgs_non_std", 1)),
    *(("test_model_forward_features", 1), ("test_model_forward_intermediates_features", 1)),
    *(("test_model_forward_intermediates", 1), ("test_model_forward_fx", 1), ("test_model_backward_fx", 2)),
    *(("test_model_forward_torchscript", 1), ("test_model_forward_fx_torchscript", 1)),
)


def timm_cases(folder: Path) -> Iterator[Case]:
    from fourierformer.integrations.timm import default_cfgs

    tests = load(folder / "tests/test_models.py")
    for name, batch in TIMM_CASES:
        for model in default_cfgs:
            if "torchscript" in name:
                yield f"{name}[{model}]", partial(skip, "TorchScript, which torch deprecates")
            else:
                yield f"{name}[{model}]", partial(getattr(tests, name), model, batch)

"""One value, from the command line to the optimizer: the files that it passes through."""

import sys
from dataclasses import fields, is_dataclass

from omegaconf import DictConfig, OmegaConf

from tests.helpers.command_line import REPOSITORY, train_lm

RATE = 0.00271828
MOST = 12


def holds(value: object) -> bool:
    """Whether a value is the rate, or a config, a spec or an override with it."""
    if isinstance(value, DictConfig):
        return OmegaConf.to_container(value).get("optim", {}).get("lr") == RATE
    if isinstance(value, dict):
        return any(map(holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds, value))
    if is_dataclass(value) and not isinstance(value, type):
        return any(holds(getattr(value, field.name, None)) for field in fields(value))
    return value == RATE if isinstance(value, float) else False


def test_the_rate_passes_through_a_dozen_files(smoke, tmp_path):
    """Every file with a function that is called with the rate, from the command line to the optimizer."""
    passed: list[str] = []

    def watch(frame, event, _):
        name = frame.f_code.co_filename
        if event == "return" and frame.f_code.co_name == "build_optimizer":
            sys.setprofile(None)
        elif event == "call" and name.startswith(str(REPOSITORY / "fourierformer")):
            count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
            arguments = frame.f_code.co_varnames[:count]
            if any(holds(frame.f_locals.get(argument)) for argument in arguments):
                passed.append(f"{name.removeprefix(f'{REPOSITORY}/')}:{frame.f_code.co_name}")

    sys.setprofile(watch)
    try:
        assert train_lm(*smoke, f"optim.lr={RATE}", f"runs_root={tmp_path}", "trainer.steps=1") == 0
    finally:
        sys.setprofile(None)
    files = list(dict.fromkeys(step.partition(":")[0] for step in passed))
    assert "fourierformer/runs/run.py" in files
    assert "fourierformer/training/optim.py" in files
    assert len(files) <= MOST, "\n".join(passed)

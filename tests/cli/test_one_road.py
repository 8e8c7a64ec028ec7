"""One value, from the command line to the optimizer: the files on its road."""

import sys
from dataclasses import fields, is_dataclass

from omegaconf import DictConfig, OmegaConf

from tests.helpers.command_line import REPOSITORY, train_lm

RATE = 0.00271828
MOST = 12
ENDS = ("make_spec", "build_optimizer")  # where the config becomes a spec, and where the optimizer gets the rate


def holds(value: object) -> bool:
    """Whether a value is the rate, or a config or a spec with it."""
    if isinstance(value, DictConfig):
        return OmegaConf.to_container(value).get("optim", {}).get("lr") == RATE
    if isinstance(value, dict):
        return any(map(holds, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return any(holds(getattr(value, field.name, None)) for field in fields(value))
    return value == RATE if isinstance(value, float) else False


def test_the_rate_passes_through_a_dozen_files(smoke, tmp_path):
    """The functions that are called with the rate, or with a config that has it, and have not returned where the config
    becomes a spec and where the optimizer is built: only their files have to be read to follow it."""
    road: list[str] = []

    def watch(frame, event, _):
        if event != "call" or frame.f_code.co_name not in ENDS:
            return
        stack = []
        if frame.f_code.co_name == ENDS[-1]:
            sys.setprofile(None)
        while frame:
            name, values = frame.f_code.co_filename, frame.f_locals.values()
            if name.startswith(str(REPOSITORY / "fourierformer")) and any(map(holds, values)):
                stack.append(f"{name.removeprefix(f'{REPOSITORY}/')}:{frame.f_code.co_name}")
            frame = frame.f_back
        road.extend(reversed(stack))

    sys.setprofile(watch)
    try:
        assert train_lm(*smoke, f"optim.lr={RATE}", f"runs_root={tmp_path}", "trainer.steps=1") == 0
    finally:
        sys.setprofile(None)
    assert road[0].startswith("fourierformer/runs/run.py:")
    assert road[-1] == "fourierformer/training/optim.py:build_optimizer"
    assert len({step.partition(":")[0] for step in road}) <= MOST, "\n".join(road)
    assert len(road) <= 2 * MOST, "\n".join(road)

"""The measurement at the end of a training."""

from types import SimpleNamespace

import pytest

from fourierformer.errors import UserError
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.measure import measure_best
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import Progress


def test_no_older_checkpoint_is_measured_in_place_of_a_damaged_best_one(tmp_path):
    """summary.json names the step of the best one beside the results."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3, say=lambda text: None)
    for step in (10, 20, 30):
        checkpoints.save(step, {"model": {}}, best=step < 30)
    (tmp_path / "checkpoints" / "step_00000020" / "state.pt").write_bytes(b"")
    parts = SimpleNamespace(task=SimpleNamespace(measured_at_end=lambda spec: [("valid", "segment")]), spec=None)
    progress = Progress(step=30, records={"best": {"step": 20}})
    with pytest.raises(UserError, match="The best checkpoint, of step 20, is damaged: nothing is measured"):
        measure_best(parts, checkpoints, progress, RunDirectory(tmp_path), None, None, None)

"""The measurement at the end of a training."""

from types import SimpleNamespace

import pytest
import torch

from fourierformer.errors import UserError
from fourierformer.processes import Processes
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


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "torch.float32"), ("bf16", "torch.bfloat16")])
def test_the_best_weights_are_measured_in_the_precision_of_the_run(tmp_path, precision, dtype):
    """Those of step 10, though training went on to 20; evaluation.json has numbers of step 20."""
    directory, model = RunDirectory(tmp_path), torch.nn.Linear(1, 1, bias=False)
    checkpoints = Checkpoints(directory.checkpoints, keep=3, say=lambda text: None)
    for step, weight in ((10, 0.25), (20, 0.5)):
        torch.nn.init.constant_(model.weight, weight)
        checkpoints.save(step, {"model": model.state_dict()}, best=step == 10)
    directory.write(directory.evaluation, {"step": 20, "results": {"valid": {"segment": {"ppl": 0.5}}}})

    def measure(model, split, protocol, poll, on_progress):
        output = model(torch.ones(1, 1))
        return {"ppl": output.item(), "dtype": str(output.dtype)}

    parts = SimpleNamespace(
        task=SimpleNamespace(measured_at_end=lambda spec: [("valid", "segment")]),
        spec=None,
        model=model,
        objective=SimpleNamespace(measure=measure),
        processes=Processes(),
        device=torch.device("cpu"),
        trainer=SimpleNamespace(precision=precision),
    )
    progress = Progress(step=20, records={"best": {"step": 10}})
    found = measure_best(parts, checkpoints, progress, directory, None, None, lambda split, protocol: None)
    assert found == {"valid": {"segment": {"ppl": 0.25, "dtype": dtype}}}

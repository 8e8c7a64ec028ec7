"""The notebook runs from its first cell to its last, and leaves what it says."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.helpers.command_line import REPOSITORY

NOTEBOOK = REPOSITORY / "notebooks" / "first_comparison.ipynb"


def code() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_it_is_committed_without_outputs():
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.full("trains four runs")
def test_it_runs_from_the_first_cell_to_the_last(tmp_path):
    """By Jupyter's own client where that is installed, else cell after cell in one process."""
    if all(map(find_spec, ("ipykernel", "nbclient", "nbformat"))):
        program = "import sys, nbclient, nbformat; nbclient.NotebookClient(nbformat.read(sys.argv[1], 4)).execute()"
        arguments = [str(NOTEBOOK)]
    else:
        program, arguments = "import sys; [exec(cell, globals()) for cell in sys.argv[1:]]", code()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = tmp_path / "runs" / "notebook"
    assert len(list(runs.glob("builtin/*/summary.json"))) == 4
    for picture in ("perplexity.png", "weights.png"):
        assert (runs / picture).stat().st_size > 5_000

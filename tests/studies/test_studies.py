"""Every study has a question, rows and an analysis; its generated parts and its figures are those of its rows."""

import importlib
import subprocess

import pytest

from fourierformer.results.documents import replaced
from tests.helpers.command_line import REPOSITORY

STUDIES = sorted(path.parent for path in (REPOSITORY / "studies").glob("*/analyse.py"))
NAMES = [path.name for path in STUDIES]


@pytest.mark.parametrize("study", STUDIES, ids=NAMES)
def test_it_has_a_question_an_answer_and_rows(study):
    text = (study / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "**Question.**" in text
    assert "**Answer" in text
    assert list(study.glob("*.csv")) or (study / "plan.md").is_file()


@pytest.mark.parametrize("study", STUDIES, ids=NAMES)
def test_its_generated_parts_are_those_of_its_rows(study):
    module = importlib.import_module(f"studies.{study.name}.analyse")
    text = (study / "README.md").read_text(encoding="utf-8")
    for name, part in (module.parts() if hasattr(module, "parts") else {}).items():
        assert replaced(text, name, part) == text, "stale: run `make studies`"


def test_a_plan_is_older_than_its_rows():
    """The first commit of a plan precedes the first start of a run."""
    from fourierformer.results.measured import is_measured, read_measured

    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=REPOSITORY, capture_output=True, text=True
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("no git history here")
    for study in STUDIES:
        plan, files = study / "plan.md", [path for path in study.glob("rows.csv") if is_measured(path)]
        if not plan.is_file() or not files:
            continue
        command = ["git", "log", "--follow", "--diff-filter=A", "--format=%cI", "--", str(plan)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        dates = done.stdout.split()
        assert dates, f"{plan} is not committed: commit it before the first run"
        assert min(dates) < min(str(run.meta["started"]) for path in files for run in read_measured(path))

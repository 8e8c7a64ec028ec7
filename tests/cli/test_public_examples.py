"""Every public name has an example that runs, and so does all code of docs/library.md, beside a finished run and its
exported model."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from fourierformer.results.documents import described, public_names
from fourierformer.runs.trained import export_run
from tests.helpers.command_line import MODEL, REPOSITORY, train_lm

OPTIONAL = "transformers"
NAMES = public_names((REPOSITORY / "docs/reference.md").read_text(encoding="utf-8"))
PROGRAM = """
import doctest, json, sys
failed = []
for name, text in json.loads(sys.stdin.read()):
    if text is None:
        from fourierformer.results.documents import described
        text = described(name)[1]
        test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
        if doctest.DocTestRunner().run(test).failed or not test.examples:
            failed.append(name)
    else:
        exec(compile(text, name, "exec"), {"__name__": name})
sys.exit(f"failed: {failed}" if failed else 0)
"""


def available(text: str) -> bool:
    return OPTIONAL not in text or importlib.util.find_spec(OPTIONAL) is not None


@pytest.fixture
def folder(tmp_path):
    """A folder with runs/my_run, of the built-in text, and exported/my_model."""
    cache = REPOSITORY / "data/prepared"  # by an absolute path: the examples run elsewhere
    assert train_lm(*MODEL, f"run_dir={tmp_path / 'runs/my_run'}", f"data.cache={cache}") == 0
    export_run(tmp_path / "runs/my_run", tmp_path / "exported/my_model")
    return tmp_path


@pytest.mark.full("a process that imports timm and transformers and runs all of them")
def test_examples_run(folder):
    """In a process of its own: one of them registers an attention."""
    page = (REPOSITORY / "docs/library.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.S | re.M)
    assert len(blocks) >= 6
    jobs = [(f"docs/library.md, block {number}", block) for number, block in enumerate(blocks, start=1)]
    jobs = [(name, block) for name, block in jobs if available(block)]
    jobs += [(name, None) for name in NAMES if available(described(name)[1])]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=folder, env=environment, input=json.dumps(jobs), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_has_one():
    assert [name for name in NAMES if ">>> " not in described(name)[1]] == []

"""The program that runs other people's suites tells passed, failed and skipped cases apart."""

import unittest
from pathlib import Path

from outside.__main__ import SUITES
from outside.cases import Suite, outcome, row, skip
from outside.transformers_mixins import run_unittest

FORMULA = """
def naive_retention(q, k, v):
    import torch
    decay = torch.log1p(-(2.0 ** (-5 - torch.arange(q.shape[1]))))[:, None, None]
    steps = torch.arange(q.shape[2])
    weights = torch.exp(decay * (steps[:, None] - steps)).tril()
    return q.shape[-1] ** SCALE * ((q @ k.mT) * weights) @ v
"""


def suite(name):
    return next(suite for suite in SUITES if suite.folder == name or suite.library == name)


def test_a_wrong_formula_fails_and_a_missing_one_is_skipped(tmp_path, capsys):
    file = tmp_path / "flash-linear-attention/fla/ops/retention/naive.py"
    file.parent.mkdir(parents=True)
    for scale, failed in (("-0.5", "0"), ("-1", "2")):
        file.write_text(FORMULA.replace("SCALE", scale))
        found = row(suite("flash-linear-attention"), tmp_path, verbose=False)
        assert (found["failed"], found["run"], found["skipped"]) == (failed, "2", "12")
        assert found["reasons"] == "naive.py is not in this copy (12)"
    assert "retention, parallel: failed AssertionError: Tensor-likes are not close!" in capsys.readouterr().out


def test_a_suite_that_is_not_there_has_a_row_that_says_so(tmp_path):
    for root in (None, tmp_path):
        found = row(suite("timm"), root, verbose=False)
        assert (found["run"], found["reasons"]) == ("0", "no folder timm in --suites")


def test_a_library_that_is_not_installed_has_a_row_that_says_so():
    def cases(_):
        import no_such_library

        yield "never", no_such_library.call

    found = row(Suite("a library", "nothing", cases, library="no-such-library"), None, verbose=False)
    assert (found["run"], found["version"]) == ("0", "")
    assert found["reasons"] == "cannot run: No module named 'no_such_library' (1)"


def test_outcomes():
    class Case(unittest.TestCase):
        def skips(self):
            self.skipTest("no GPU")

        def fails(self):
            self.fail("one\ntwo")

    assert outcome(lambda: None) == ("passed", "")
    assert outcome(lambda: skip("why")) == ("skipped", "why")
    assert outcome(lambda: run_unittest(Case("skips"))) == ("skipped", "no GPU")
    assert outcome(lambda: run_unittest(Case("fails")))[0] == "failed"
    assert outcome(lambda: Path("/nowhere/at/all").read_text())[0] == "failed"

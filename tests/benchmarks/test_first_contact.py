"""The cases of first contact, and that an error in one leaves the others; whole runs are in test_gpu.py."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from benchmarks import first_contact
from fourierformer.errors import SetupError


def test_heads_of_a_case_need_every_form_of_the_kernel():
    tiers = pytest.importorskip("fourierformer.kernels.sinc.op").TIERS
    row = first_contact.Row("tiny", "precise", "float32", 20, 20, 16, True, 1e-6)
    (q, k, _, _, radius), _ = first_contact.inputs_of(row, "cpu")
    spread = (torch.maximum(q.amax((0, 2)) - k.amin((0, 2)), k.amax((0, 2)) - q.amin((0, 2))) * radius).amax(1)
    chosen = [16 if z <= 16 else 32 if z <= 42 else 0 for z in spread.tolist()]  # README of the kernel
    assert sorted(chosen) == sorted(tiers)


def test_cases_cover_both_modes_all_widths_and_masks_on_a_gpu():
    rows = first_contact.cases("cuda")
    tiny = [row for row in rows if row.case == "tiny" and row.dtype == "float32"]
    assert Counter((row.width, row.mode) for row in tiny) == {
        (width, mode): 2 for width in (16, 32, 64) for mode in ("half", "precise")
    }
    assert {(row.causal, row.eps) for row in tiny} == {(True, 1e-6), (False, 0.0)}
    assert {"keys left out", "few queries", "odd width", *first_contact.PAPER} <= {row.case for row in rows}


def test_errors_are_of_every_head():
    truth = [torch.ones(1, 2, 3, 4), torch.ones(2, 4)]
    wrong = [truth[0].clone(), truth[1].clone()]
    wrong[0][:, 1] *= 1.5
    wrong[1][0] *= 3
    assert first_contact.errors_of_heads(wrong, truth) == pytest.approx([0, 2, 0.5, 0])


def test_a_case_that_fails_says_why_and_is_not_right(monkeypatch):
    def fail(row, device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield row

    monkeypatch.setattr(first_contact, "measure", fail)
    monkeypatch.setattr(first_contact, "apart", lambda function, *arguments, patience: function(*arguments))
    row = first_contact.finish(first_contact.cases("cpu")[0], "cpu")
    assert not row.right
    assert "illegal memory access" in first_contact.line(row)


def test_wrong_numbers_are_named():
    row = first_contact.cases("cpu")[0]
    row.status, row.first_call_s, row.excess = first_contact.LAUNCHED, 1.0, 1.5
    row.output = row.dq = row.dk = row.dv = row.dradius = 0.5
    assert not row.right
    assert first_contact.line(row).endswith("WRONG: 1.5 times the limit")


def test_an_unknown_case_names_the_known_ones(monkeypatch):
    arguments = SimpleNamespace(device="cpu", case="deit", processes=1, out=None)
    monkeypatch.setattr(first_contact, "arguments", lambda: arguments)
    with pytest.raises(SetupError, match="Choose from tiny, keys left out, few queries, odd width"):
        first_contact.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_can_be_done(monkeypatch):
    for name in ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # as the program sets them, and away again
    monkeypatch.setattr(sys, "argv", ["first_contact.py"])
    with pytest.raises(SetupError, match="no GPU: torch sees none"):
        first_contact.main()

"""Runs other people's test suites and reference formulas on this package: the table of docs/reliability.md.

python -m outside --suites FOLDER

FOLDER has any of timm, transformers, flash-linear-attention, zoology, transformer-mgk, robust_transformer,
Elliptical-Attention, FourierFormer_NeurIPS: checkouts of these repositories, or for transformers its source archive.
A suite that is not there has a row that says so. Nothing of them is copied. The table is written with --suites only.
"""

import os
import sys
from pathlib import Path

import torch

from fourierformer.errors import SetupError
from fourierformer.files import write_csv
from fourierformer.printing import echo
from fourierformer.provenance import MEASURED, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error
from outside.authors import authors_cases
from outside.cases import Suite, row
from outside.elliptical import elliptical_cases
from outside.language_model import language_model_cases
from outside.mixture_keys import mixture_cases
from outside.naive_formulas import naive_cases
from outside.recall import recall_cases
from outside.robust import robust_cases
from outside.timm_models import timm_cases
from outside.torch_samples import sdpa_cases
from outside.transformers_mixins import mixin_cases
from outside.transformers_models import model_cases

SUITES = (
    Suite("timm tests/test_models.py", "our models do what timm's do", timm_cases, "timm"),
    Suite("transformers ModelTesterMixin", "our causal language model is one of theirs", mixin_cases, "transformers"),
    Suite("models of transformers, Trainer", "`attn_implementation=\"fourier\"`", model_cases, library="transformers"),
    Suite("torch, sample inputs of scaled_dot_product_attention", "`fourier_attention`", sdpa_cases, library="torch"),
    Suite("flash-linear-attention naive.py", "our formulas are theirs", naive_cases, "flash-linear-attention"),
    Suite("zoology multiquery_ar", "our recall data is the task of the literature", recall_cases, "zoology"),
    Suite("transformer-mgk, attention", "`mgk` and `mlk` are theirs, with shares per head", mixture_cases,
          "transformer-mgk"),
    Suite("transformer-mgk, language model", "our model is theirs", language_model_cases, "transformer-mgk"),
    Suite("robust_transformer", "`kde` is theirs; `rkde` is once a sign is mended; `mom` is with one block",
          robust_cases, "robust_transformer"),
    Suite("Elliptical-Attention", "`elliptical` is theirs for images; their language model sees the future",
          elliptical_cases, "Elliptical-Attention"),
    Suite("FourierFormer_NeurIPS", "`fourier` is theirs, with plain code for its CUDA product", authors_cases,
          "FourierFormer_NeurIPS"),
)  # fmt: skip


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--suites", type=Path, help="a folder of checkouts")
    parser.add_argument("--only", default="", help="only suites with this in their name; writes no file")
    parser.add_argument("--verbose", action="store_true", help="a line for every case, not only for failures")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.manual_seed(0)
    root = arguments.suites.absolute() if arguments.suites else None
    chosen = [suite for suite in SUITES if arguments.only in suite.name]
    with exit_on_user_error():
        if root and not root.is_dir():
            raise SetupError(f"--suites {arguments.suites}: no such folder. Name one with checkouts, or leave it out")
        if not chosen:
            names = ", ".join(suite.name for suite in SUITES)
            raise SetupError(f"--only {arguments.only}: no suite has this in its name. Choose from {names}")
    rows = [row(suite, root, arguments.verbose) for suite in chosen]
    for line in rows:
        echo("  ".join(f"{key} {value}" for key, value in line.items() if key != "shows"))
    if root and not arguments.only:  # without checkouts most rows would lose their numbers
        libraries = ("torch", "timm", "transformers")
        write_csv(MEASURED / "outside.csv", rows, header("-m outside", libraries, machine=machine()))
    if any(int(line["failed"]) for line in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()

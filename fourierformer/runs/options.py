"""The command-line options of scripts that take a trained run: which checkpoint, which weights, which device."""

import argparse
from pathlib import Path


def add_run_options(parser: argparse.ArgumentParser, *, device: bool = True) -> None:
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="best")
    parser.add_argument("--weights", choices=["raw", "ema"], default="raw", help="ema: their average over the training")
    if device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")


def chosen_weights(arguments: argparse.Namespace) -> dict[str, bool]:
    """The arguments `last` and `averaged` of whatever loads a run."""
    return {"last": arguments.checkpoint == "last", "averaged": arguments.weights == "ema"}

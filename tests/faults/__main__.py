"""Injects faults for as long as asked and writes the table of what came of them: results/measured/faults.csv.

PYTHONPATH=tests python -m faults --minutes 30
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

from faults.campaign import campaign
from faults.settings import Bench, warm_up
from faults.trials import BAD, Tally, perform, remove
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, header, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="for so long (default: 30)")
    parser.add_argument("--seed", type=int, help="of the random choices; printed (default: drawn)")
    parser.add_argument("--only", help="only faults with this in their name")
    parser.add_argument("--out", type=Path, help=f"the file to write (default: {MEASURED.name}/faults.csv)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    bench = Bench(folder / "bench")
    bench.folder.mkdir()
    warm_up(bench)
    trials = campaign(bench, seed, arguments.only or "")
    (folder / "trials").mkdir()
    started = time.monotonic()
    tally = perform(trials, folder / "trials", until=started + 60 * arguments.minutes)
    minutes = f"{(time.monotonic() - started) / 60:.0f}"
    more = {"machine": machine(), "seed": str(seed), "minutes": minutes}
    rows = tally.rows()
    out = arguments.out or MEASURED / "faults.csv"
    write_csv(out, rows, header("-m faults", ("torch", "numpy", "hydra-core"), **more))
    print(summary(tally))
    if tally.failures:
        print(f"the folders of the failures stay in {folder}")
        sys.exit(1)
    remove(folder)


def summary(tally: Tally) -> str:
    bad = ", ".join(f"{sum(line[kind] for line in tally.counts.values())} x {kind}" for kind in BAD)
    return f"{tally.total} faults: {bad}"


if __name__ == "__main__":
    main()

"""Injects faults for some minutes and writes a table of the outcomes: results/measured/faults.csv.

python -m faults --minutes 30
"""

import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from faults.campaign import campaign
from faults.guard import SECRET
from faults.settings import Bench, warm_up
from faults.trials import BAD, Tally, perform
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, header, machine
from fourierformer.runs.console_io import Parser


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="for so long (default: 30)")
    parser.add_argument("--processes", type=int, default=2, help="at the same time (default: 2)")
    parser.add_argument("--seed", type=int, help="of the random choices; printed (default: drawn)")
    parser.add_argument("--only", default="", help="only groups with this in their name (faults/campaign.py)")
    parser.add_argument(
        "--out", type=Path, default=MEASURED / "faults.csv", help="default: results/measured/faults.csv"
    )
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    torch.set_num_threads(1)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_TOKEN": SECRET}
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    started = time.monotonic()
    inject = partial(inject_faults, folder, arguments.only, started + 60 * arguments.minutes)
    tally = Tally()
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("fork")) as pool:
        for part in pool.map(inject, [f"{seed}-{number}" for number in range(arguments.processes)]):
            tally.join(part)
    if not tally.total:
        sys.exit("error: no time was left for a fault after the undisturbed runs: choose more --minutes")
    minutes = f"{(time.monotonic() - started) / 60:.0f}, in {arguments.processes} processes"
    facts = {"machine": machine(), "seed": str(seed), "minutes": minutes}
    write_csv(arguments.out, tally.rows(), header("-m faults", ("torch", "numpy", "hydra-core"), **facts))
    print(summary(tally))
    if tally.failures:
        print(f"the folders of the failures stay in {folder}")
        sys.exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def inject_faults(folder: Path, only: str, until: float, seed: str) -> Tally:
    """What one process does; each has runs of its own to harm."""
    own = folder / seed
    bench = Bench(own / "bench")
    bench.folder.mkdir(parents=True)
    (own / "trials").mkdir()
    warm_up(bench)
    return perform(campaign(bench, seed, only), own / "trials", until=until)


def summary(tally: Tally) -> str:
    bad = ", ".join(f"{sum(line[kind] for line in tally.counts.values())} x {kind}" for kind in BAD)
    return f"{tally.total} faults: {bad}"


if __name__ == "__main__":
    main()

"""Does this installation train as it should? Short runs of softmax and Fourier attention against committed curves.

python scripts/check_curve.py              two runs of 200 steps: half a minute to three minutes on a CPU
python scripts/check_curve.py --record     five seeds each -> results/reference/*.csv (after a change of the recipe)
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.provenance import REPOSITORY, describe
from fourierformer.results.reference import REFERENCE, Curve, compare, read_curve, write_curve
from fourierformer.runs.launch import exit_on_user_error

ATTENTIONS = ("softmax", "fourier")
RECORDED_SEEDS = (1, 2, 3, 4, 5)
CHECKED_SEED = 6  # none of the recorded ones: the band must hold for a seed that did not make it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the reference curves anew")
    parser.add_argument("--device", default="auto", help="as trainer.device (default: auto)")
    arguments = parser.parse_args()
    with exit_on_user_error(), tempfile.TemporaryDirectory() as folder:
        if arguments.record:
            record(Path(folder), arguments.device)
        elif not check(Path(folder), arguments.device):
            sys.exit(1)


def check(folder: Path, device: str) -> bool:
    fine = True
    for attention in ATTENTIONS:
        curve = read_curve(REFERENCE / f"{attention}.csv")
        found = train(folder, attention, CHECKED_SEED, device)
        lines, good = compare(curve, found)
        print("\n".join([f"\n{attention}", *lines]))
        fine &= good
    print("\nthis installation trains as it should" if fine else "\nthis installation does NOT train as it should")
    return fine


def record(folder: Path, device: str) -> None:
    origin, _ = describe()
    facts = {"command": "python scripts/check_curve.py --record", "commit": origin["commit"], "cpu": origin["cpu"]}
    facts |= {name: origin["versions"].get(name) for name in ("torch", "numpy")} | {"python": origin["python"]}
    for attention in ATTENTIONS:
        runs = [train(folder, attention, seed, device) for seed in RECORDED_SEEDS]
        path = REFERENCE / f"{attention}.csv"
        write_curve(path, runs, facts)
        print(path)


def train(folder: Path, attention: str, seed: int, device: str) -> Curve:
    """Loss by step of one short run."""
    print(f"training {attention}, seed {seed} ...", flush=True)
    command = [sys.executable, str(REPOSITORY / "train_lm.py"), "experiment=reference_curve"]
    command += [f"attention={attention}", f"seed={seed}", f"trainer.device={device}", f"runs_root={folder}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        raise SetupError(f"the run of {attention} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
    (metrics,) = folder.glob(f"reference_curve/*-{attention}-s{seed}-*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {row["step"]: row["train_loss"] for row in rows if "train_loss" in row}


if __name__ == "__main__":
    main()

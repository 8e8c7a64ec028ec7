"""How fast the Fourier estimators of the paper converge, beside what its theorems say.

    python -m studies.estimators.simulate                         # about 3 minutes on 2 cores, into runs/estimators
    python -m studies.estimators.simulate --quick                 # about 30 seconds: few sizes, few data sets
    python -m studies.estimators.simulate --out studies/estimators
    python -m studies.estimators.simulate --correlations --out studies/estimators      # under 1 minute; no simulation

Writes estimator_rates.csv (every mean error), estimator_slopes.csv (every fitted slope) and log-log plots. Rules for
the radius: "theorem" grows it as Theorem 1 says, "plancherel" as the kernel's transform near 0 says (Theorem 2 says the
same where it applies), "cross-validation" asks the data; "best" has the least mean error on these very data sets.

--correlations writes estimator_correlations.csv and its chart instead: the exact MISE of each kernel at its best radius
for normal densities of 2 and 3 features with unit variances and one correlation, beside the isotropic Gaussian's.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fourierformer.files import write_csv
from fourierformer.provenance import header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error
from studies.estimators import charts
from studies.estimators.analyse import TITLE
from studies.estimators.correlations import GAUSSIAN, BestError, best_errors
from studies.estimators.radius import plancherel_rate, theorem_rate
from studies.estimators.rates import Row, bimodal, correlated_features, normal, rates, slope

CORRELATION = 0.8
ROW_FIELDS = ("part", "case", "dim", "correlation", "kernel", "rule", "count", "radius")
SLOPE_KEYS = ("part", "case", "dim", "kernel", "rule")


@dataclass(frozen=True)
class Size:
    counts: dict[int, list[int]]  # dimension -> numbers of samples
    data_sets: dict[int, int]  # dimension -> data sets of each number
    powers: list[int | None]  # None: Gaussian
    correlations: list[float]
    cross_validated: int  # largest number of samples that is cross-validated, at D = 1 and 2


FULL = Size(
    {1: [2**n for n in range(8, 14)], 2: [2**n for n in range(8, 14)], 3: [2**n for n in range(8, 13)]},
    {1: 20, 2: 16, 3: 10},
    [1, 2, 3, 4, 6, None],
    [0.0, 0.5, 0.8, 0.95],
    512,
)
QUICK = Size({dim: [128, 256, 512] for dim in (1, 2, 3)}, dict.fromkeys((1, 2, 3), 4), [1, 4, None], [0.9], 128)
CORRELATED_SAMPLES = 1000

EXACT_CORRELATIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
EXACT_SAMPLES = (100, 1000, 10_000, 100_000)
EXACT_POWERS = (4, 6, 1)
PARTS = ("density", "regression")


def job(function: Callable, *settings: object) -> list[Row]:
    return list(function(*settings))


def jobs(size: Size) -> dict[str, tuple]:
    """Name -> (function, its arguments); the longest first."""
    calls = {}
    for dim in (3, 2, 1):
        for case in (normal(dim), bimodal() if dim == 1 else normal(dim, CORRELATION)):
            for part in PARTS:
                cross_validated = size.cross_validated if dim < 3 else 0
                settings = (part, case, size.counts[dim], size.powers, size.data_sets[dim], cross_validated)
                calls[f"{part}, {case.name}, D = {dim}"] = (rates, *settings)
    for part in PARTS:
        for value in size.correlations:
            settings = (part, 2, value, CORRELATED_SAMPLES, size.powers, min(8, size.data_sets[2]))
            calls[f"{part}, D = 2, correlation {value:g}"] = (correlated_features, *settings)
    return calls


def measure(size: Size) -> list[Row]:
    """The rows of every job, on all cores; a line as each is done."""
    todo, begin = jobs(size), time.monotonic()
    workers = len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers: one core each
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(job, *call): name for name, call in todo.items()}
        for number, future in enumerate(as_completed(futures), start=1):
            future.result()
            elapsed = time.monotonic() - begin
            print(f"[{number}/{len(futures)}, {elapsed:.0f} s] {futures[future]}", flush=True)
    return [row for future in futures for row in future.result()]


def fitted(rows: list[Row]) -> list[dict]:
    """A slope for every line of at least three numbers of samples."""
    followed = [row for row in rows if row.rule in ("plancherel", "theorem")]
    key = lambda row: tuple(getattr(row, name) for name in SLOPE_KEYS)  # noqa: E731
    slopes = []
    for names, group in itertools.groupby(sorted(followed, key=key), key):
        line = sorted(group, key=lambda row: row.count)
        if len(line) >= 3:
            slopes.append(dict(zip(SLOPE_KEYS, names, strict=True)) | _against_theory(line))
    return slopes


def _against_theory(line: list[Row]) -> dict:
    first = line[0]
    power = None if first.kernel == "gaussian" else int(first.kernel.removeprefix("sinc^"))
    measured, standard_error = slope(line)
    stated = theorem_rate(first.part, power, first.dim)
    counts, exact = [row.count for row in line], [row.exact for row in line]
    return {
        "from": counts[0],
        "to": counts[-1],
        "slope": measured,
        "standard_error": standard_error,
        "exact": None if None in exact else float(np.polyfit(np.log(counts), np.log(exact), 1)[0]),
        "theorem": stated[1] if stated else None,
        "plancherel": plancherel_rate(power, first.dim)[1],
    }


def write(path: Path, records: list[dict]) -> None:
    head = header("-m studies.estimators.simulate", ("numpy", "scipy", "scikit-learn"), machine=machine())
    write_csv(path, records, head, digits=6)


def as_record(row: Row) -> dict:
    shown = {"error": row.mean, "standard_error": row.standard_error, "exact": row.exact}
    return {name: getattr(row, name) for name in ROW_FIELDS} | shown | {"data_sets": len(row.errors)}


def print_slopes(slopes: list[dict]) -> None:
    print(f"\n{'slope of log error against log N':43}{'measured':>16}{'exact':>8}{'theorem':>9}{'Plancherel':>12}")
    for row in slopes:
        name = f"{row['part']}, {row['case']}, D = {row['dim']}, {row['kernel']}, {row['rule']}"
        theory = [f"{row[key]:.3f}" if row[key] is not None else "-" for key in ("exact", "theorem", "plancherel")]
        measured = f"{row['slope']:.3f} ± {row['standard_error']:.3f}"
        print(f"{name:52}{measured:>7}{theory[0]:>8}{theory[1]:>9}{theory[2]:>12}")


def print_correlated(rows: list[Row]) -> None:
    print("\nerror relative to the isotropic Gaussian, both at their best radius, D = 2, N = 1000")
    best = [row for row in rows if row.rule in ("best", "scott")]
    for (part, value), group in itertools.groupby(best, lambda row: (row.part, row.correlation)):
        line = list(group)
        base = next(row.mean for row in line if row.kernel == "gaussian")
        ratios = ", ".join(f"{row.kernel} {row.mean / base:.2f}" for row in line if row.kernel != "gaussian")
        print(f"{part}, correlation {value:g}: {ratios}")


def exact_correlations(quick: bool) -> list[BestError]:
    settings = itertools.product((2, 3), EXACT_SAMPLES, EXACT_CORRELATIONS[::3] if quick else EXACT_CORRELATIONS)
    return [best for dim, samples, value in settings for best in best_errors(dim, value, samples, powers=EXACT_POWERS)]


def as_exact_record(best: BestError) -> dict:
    """A Gaussian has a bandwidth h (the bandwidth matrix is h^2 I, or h^2 Sigma), a Fourier kernel a radius."""
    width = {"bandwidth": 1 / best.radius} if best.kernel.startswith("gaussian") else {"radius": best.radius}
    names = {key: getattr(best, key) for key in ("dim", "correlation", "samples", "kernel")}
    return names | {"radius": None, "bandwidth": None} | width | {"mise": best.mise, "ratio_to_gaussian": best.ratio}


def print_exact(bests: list[BestError]) -> None:
    print("exact MISE relative to the isotropic Gaussian, each at its best radius or bandwidth")
    for (dim, samples, value), group in itertools.groupby(
        bests, lambda best: (best.dim, best.samples, best.correlation)
    ):
        ratios = ", ".join(f"{best.kernel} {best.ratio:.3f}" for best in group if best.kernel != GAUSSIAN)
        print(f"D = {dim}, N = {samples:,}, correlation {value:g}: {ratios}")


def write_correlations(quick: bool, folder: Path) -> None:
    bests = exact_correlations(quick)
    records = [as_exact_record(best) for best in bests]
    write(folder / "estimator_correlations.csv", records)
    charts.ratio_chart(charts.ratio_panels(records), "estimator_correlations", TITLE).save(folder)
    print_exact(bests)
    print(f"\nTable and plot: {folder}")


def write_rates(quick: bool, folder: Path) -> None:
    rows = measure(QUICK if quick else FULL)
    records, slopes = [as_record(row) for row in rows], fitted(rows)
    write(folder / "estimator_rates.csv", records)
    write(folder / "estimator_slopes.csv", slopes)
    for part in PARTS:
        panels, title = charts.rate_panels(part, records, slopes), f"{part.capitalize()}: error against"
        error = charts.ERROR[part]
        charts.error_chart(panels, charts.COUNT, error, f"estimator_{part}", f"{title} samples").save(folder)
        panel, name = charts.correlation_panel(part, records), f"estimator_{part}_correlation"
        charts.error_chart([panel], charts.CORRELATION, error, name, f"{title} correlation").save(folder)
    print_slopes(slopes)
    print_correlated(rows)
    print(f"\nTables and plots: {folder}")


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few sizes and data sets: shows that it works")
    parser.add_argument("--correlations", action="store_true", help="exact errors against the correlation of features")
    parser.add_argument("--out", type=Path, default=Path("runs/estimators"), help="folder for tables and plots")
    args = parser.parse_args()
    with exit_on_user_error():
        (write_correlations if args.correlations else write_rates)(args.quick, args.out)


if __name__ == "__main__":
    main()

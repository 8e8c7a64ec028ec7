"""What was measured without training a model, read from committed CSV files: rates of the theory, times of kernels."""

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import CsvFile, read_csv
from fourierformer.plots.charts import time_chart
from fourierformer.plots.estimators import (
    CORRELATION,
    COUNT,
    ERROR,
    correlation_panel,
    error_chart,
    error_keys,
    rate_panels,
    ratio_chart,
    ratio_panels,
)
from fourierformer.plots.picture import Picture
from fourierformer.report.section import Charts, Section, Sheet, slug
from fourierformer.results.formats import DASH

Rows = list[dict[str, str]]
THEOREMS = (
    "Theorem 1 (density, power 4 and more): MISE falls at least like N^(-2/(D+2)). Theorem 2 (regression, power 6 and "
    "more): the squared error falls at least like N^(-4/(D+4)). Both bound from above, so a steeper line agrees with "
    "them; for lower powers they say nothing."
)
TRANSFORM = (
    "by the transform: what the kernel's Fourier transform near 0 gives for smooth targets (Plancherel), "
    "N^(-4/(D+4)) for power 3 and more; exact: the slope of the exact MISE, known for the normal density"
)
CORRELATED = (
    "Every kernel at its best radius, D = 2. What the Fourier kernel gains where features are correlated is measured "
    "against the isotropic Gaussian; the whitened Gaussian knows the covariance."
)
EXACT = (
    "Computed, not simulated; N = 1,000, every kernel at its best radius. Below 1 it beats the isotropic Gaussian. The "
    "Gaussian with full covariance is what any method that learns correlations could hope for."
)
KERNEL_COLUMNS = ("shape", "batch", "what", "name")  # by which a file of benchmarks/kernel.py is recognised
KERNEL_NUMBERS = (  # a file has those that its machine could give
    *("ms", "MiB", "time x softmax", "memory x softmax", "time x reference", "memory x reference", "time x direct"),
    "of floor",
)
KERNEL_SETTINGS = ("gpu", "machine", "threads", "torch", "triton", "commit", "radius", "scale", "eps")
NO_GPU = "Measured on a CPU only: no times of a GPU are committed."


def committed_sections(files: Iterable[Path]) -> list[Section]:
    """Of the CSV files that a user names; those of runs, which have their own sections, are passed over."""
    by_name = {path.stem: path for path in sorted(files)}
    rates, slopes, exact = (by_name.get(f"estimator_{name}") for name in ("rates", "slopes", "correlations"))
    simulated = [rates, slopes] if rates and slopes else []
    estimators = [*simulated, *([exact] if exact else [])]
    kernels = [path for path in by_name.values() if _is_of_kernels(read_csv(path))]
    return [*_section(estimators, _estimator_section), *_section(kernels, _kernel_section)]


def _is_of_kernels(file: CsvFile) -> bool:
    return bool(file.rows) and tuple(file.columns)[: len(KERNEL_COLUMNS)] == KERNEL_COLUMNS


def _section(files: list[Path], make: Callable[[dict[str, CsvFile]], Section]) -> list[Section]:
    try:
        return [make({file.stem: read_csv(file) for file in files})] if files else []
    except (KeyError, ValueError, TypeError) as error:
        names = ", ".join(map(str, files))
        raise SetupError(f"{names}: not as its script writes it ({error!r}). Restore it from git.") from None


def _estimator_section(files: dict[str, CsvFile]) -> Section:
    """From the files that scripts/estimator_rates.py writes: simulated errors with fitted slopes, and exact errors."""
    parts: list[Sheet | Charts] = []
    if "estimator_rates" in files:
        rates, slopes = files["estimator_rates"].rows, files["estimator_slopes"].rows
        parts += [_rate_charts(part, rates, slopes) for part in ERROR]
        stated = [row for row in slopes if _as_the_theorem_says(row)]
        caption = "Where a theorem applies: fitted slopes of log error against log N."
        parts.append(_slopes(stated, caption, files["estimator_rates"].comments))
        parts.append(_slopes(slopes, f"All {len(slopes)} fitted slopes.", [], folded=True))
        parts.append(_correlation_charts(rates))
    if exact := files.get("estimator_correlations"):
        parts.append(_exact_charts(exact.rows))
    return Section("Rates of the estimators", "estimators", parts, headline=THEOREMS)


def _rate_charts(part: str, rates: Rows, slopes: Rows) -> Charts:
    panels = rate_panels(part, rates, slopes)
    pictures = []
    for panel in panels:
        name = f"{part}-error-{slug(panel.title.replace(' = ', ''))}--estimators"
        pictures.append(error_chart([panel], COUNT, ERROR[part], name, f"{part.capitalize()}, {panel.title}"))
    caption = "Mean over data sets with its standard error. Solid: the radius grows by the kernel's transform."
    title = f"{part.capitalize()}: error against the number of samples"
    return Charts(pictures, title, caption, error_keys(panels), small=True)


def _correlation_charts(rates: Rows) -> Charts:
    pictures = []
    for part in ERROR:
        name, title = f"{part}-error-by-correlation--estimators", f"{part.capitalize()}: error against correlation"
        pictures.append(error_chart([correlation_panel(part, rates)], CORRELATION, ERROR[part], name, title))
    title = "Correlated features, Fourier against Gaussian"
    return Charts(pictures, title, CORRELATED, pictures[0].keys, small=True)


def _exact_charts(rows: Rows) -> Charts:
    pictures = []
    for title, lines in ratio_panels(rows).items():
        name = f"exact-error-by-correlation-{slug(title.replace(' = ', ''))}--estimators"
        pictures.append(ratio_chart({title: lines}, name, f"Normal density, {title}"))
    return Charts(pictures, "Exact errors of correlated normal densities", EXACT, pictures[0].keys, small=True)


def _as_the_theorem_says(row: dict[str, str]) -> bool:
    """It applies, and the radius grows as it says: where both rules say the same, only one was run."""
    return bool(row["theorem"]) and (row["rule"] == "theorem" or row["theorem"] == row["plancherel"])


def _slopes(slopes: Rows, caption: str, origin: list[str], folded: bool = False) -> Sheet:
    header = ["estimator", "data", "kernel", "radius grows", "N", "slope", "exact", "theorem", "by the\ntransform"]
    grows = {"plancherel": "by the transform", "theorem": "by the theorem"}
    slopes = sorted(slopes, key=lambda row: (row["part"], row["dim"], row["case"] != "normal"))
    body = [
        [
            *(row["part"], f"{row['case']}, D = {row['dim']}", row["kernel"]),
            "as both say" if row["theorem"] == row["plancherel"] else grows.get(row["rule"], row["rule"]),
            f"{int(row['from']):,} to {int(row['to']):,}",
            f"{float(row['slope']):.2f} ± {float(row['standard_error']):.2f}",
            *(f"{float(row[key]):.2f}" if row[key] else DASH for key in ("exact", "theorem", "plancherel")),
        ]
        for row in slopes
    ]
    starts = frozenset(i for i in range(1, len(body)) if body[i][:2] != body[i - 1][:2])
    lines = ["± is the standard error by leaving out one data set at a time", TRANSFORM, *origin]
    return Sheet(caption, header, body, lines, starts=starts, folded=folded)


def _kernel_section(files: dict[str, CsvFile]) -> Section:
    parts: list[Sheet | Charts] = []
    for name, file in files.items():
        parts += [_kernel_sheet(name, file.rows), Charts(_kernel_pictures(name, file.rows), small=True)]
    gpus = {row["gpu"] for file in files.values() for row in file.rows if row.get("gpu")}
    headline = f"Measured on {', '.join(sorted(gpus))}." if gpus else NO_GPU
    return Section("Time and memory of the kernels", "kernels", parts, headline)


def _kernel_sheet(name: str, rows: Rows) -> Sheet:
    shown = [key for key in KERNEL_NUMBERS if any(row.get(key) for row in rows)]
    kinds = ["dtype"] if any(row.get("dtype") for row in rows) else []
    header = ["shape", "pass", "kernel", *kinds, *(key.replace(" x ", " x\n") for key in shown)]
    body = [
        [_shape(row, rows), row["what"], row["name"]]
        + [row.get(key) or DASH for key in kinds]
        + [_digits(row.get(key)) for key in shown]
        for row in rows
    ]
    starts = frozenset(i for i in range(1, len(body)) if body[i][0] != body[i - 1][0])
    # within one file a setting has one value, but for the number of threads
    values = {key: " and ".join(dict.fromkeys(row[key] for row in rows if row.get(key))) for key in KERNEL_SETTINGS}
    settings = ", ".join(f"{key} {value}" for key, value in values.items() if value)
    lines = ["median times; MiB is the peak beyond the inputs", settings, f"from results/measured/{name}.csv"]
    return Sheet("One line per kernel and pass.", header, body, lines, starts=starts)


def _kernel_pictures(name: str, rows: Rows) -> list[Picture]:
    pictures = []
    for shape, group in groupby(rows, lambda row: _shape(row, rows)):
        values: dict[str, dict[str, float]] = {}
        for row in group:
            who = f"{row['name']}, {row['dtype']}" if row.get("dtype") else row["name"]
            values.setdefault(row["what"], {})[who] = float(row["ms"])
        pictures.append(time_chart(values, f"kernel-time-{slug(shape)}--{slug(name)}", f"Time at {shape}", "ms"))
    return pictures


def _shape(row: dict[str, str], rows: Rows) -> str:
    """With the number of threads where the file has several."""
    several = len({other.get("threads") for other in rows}) > 1
    return f"{row['shape']}, batch {row['batch']}" + (f", threads {row['threads']}" if several else "")


def _digits(text: str | None) -> str:
    if not text:
        return DASH
    value = float(text)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")

"""The estimators of the theory: measured errors and their slopes beside what the theorems state."""

from collections.abc import Iterable

from fourierformer.plots import KNOWN, ErrorLine, estimator_chart, estimator_keys
from fourierformer.report.section import Charts, Section, Sheet, slug
from fourierformer.results.layout import DASH

Rows = list[dict[str, str]]
ERROR = {"density": "MISE", "regression": "mean squared error"}
SAMPLES, CORRELATION = "samples N", "correlation of the two features"
RATE_RULES = ("plancherel", "theorem", "cross-validation")
MEANING = (
    "Theorem 1 (density, power 4 and more): MISE falls at least like N^(-2/(D+2)). Theorem 2 (regression, power 6 and "
    "more): the squared error falls at least like N^(-4/(D+4)). Both bound from above, so a steeper line agrees with "
    "them; for lower powers they say nothing."
)
TRANSFORM = (
    "by the transform: what the kernel's Fourier transform near 0 gives for smooth targets (Plancherel), "
    "N^(-4/(D+4)) for power 3 and more; exact: the slope of the exact MISE, known for the normal density"
)
ARGUMENT = (
    "Every kernel at its best radius, D = 2. What the Fourier kernel gains where features are correlated is measured "
    "against the isotropic Gaussian; the whitened Gaussian knows the covariance."
)


def estimator_section(tables: dict[str, tuple[list[str], Rows]]) -> Section:
    """From estimator_rates.csv (errors) and estimator_slopes.csv (fits), as scripts/estimator_rates.py writes them."""
    origin, rates = tables["estimator_rates.csv"]
    _, slopes = tables["estimator_slopes.csv"]
    kernels = _unique(row["kernel"] for row in rates if row["kernel"] != KNOWN)
    parts: list[Sheet | Charts] = []
    for part in ERROR:
        parts.append(_rate_charts(part, rates, slopes, kernels))
    stated = [row for row in slopes if _as_the_theorem_says(row)]
    parts.append(_slopes(stated, "Where a theorem applies: fitted slopes of log error against log N.", origin))
    parts.append(_slopes(slopes, f"All {len(slopes)} fitted slopes.", [], folded=True))
    parts.append(_correlation_charts(rates, kernels))
    return Section("Rates of the estimators", "estimators", parts, headline=MEANING)


def _rate_charts(part: str, rates: Rows, slopes: Rows, kernels: list[str]) -> Charts:
    rows = [row for row in rates if row["part"] == part and row["rule"] in RATE_RULES]
    panels = _unique((row["case"], row["dim"]) for row in rows)
    pictures, everything = [], []
    for case, dim in sorted(panels, key=lambda panel: (panel[1], panel[0] != "normal")):
        own = [row for row in rows if (row["case"], row["dim"]) == (case, dim)]
        lines = _lines(own, "count")
        everything += lines
        stated = [row for row in slopes if (row["part"], row["case"], row["dim"]) == (part, case, dim)]
        theorem = next((float(row["theorem"]) for row in stated if row["theorem"]), None)
        name, title = f"{part}-error-{slug(case)}-d{slug(dim)}--estimators", f"{part.capitalize()}, {case}, D = {dim}"
        pictures.append(estimator_chart(lines, kernels, theorem, name, title, (SAMPLES, ERROR[part])))
    theorem = any(row["theorem"] for row in slopes if row["part"] == part)
    keys = estimator_keys(everything, kernels, theorem)
    caption = "Mean over data sets with its standard error. Solid: the radius grows by the kernel's transform."
    return Charts(pictures, f"{part.capitalize()}: error against the number of samples", caption, keys, small=True)


def _correlation_charts(rates: Rows, kernels: list[str]) -> Charts:
    kernels = [*kernels, KNOWN]
    rows = [row for row in rates if row["rule"] not in RATE_RULES]
    pictures = []
    for part in ERROR:
        lines = _lines([row for row in rows if row["part"] == part], "correlation")
        name, title = f"{part}-error-by-correlation--estimators", f"{part.capitalize()}: error against correlation"
        if lines:
            pictures.append(estimator_chart(lines, kernels, None, name, title, (CORRELATION, ERROR[part])))
    keys = pictures[0].keys if pictures else []
    return Charts(pictures, "Correlated features, Fourier against Gaussian", ARGUMENT, keys, small=True)


def _lines(rows: Rows, x: str) -> list[ErrorLine]:
    found = []
    for kernel, rule in _unique((row["kernel"], row["rule"]) for row in rows):
        own = sorted((row for row in rows if (row["kernel"], row["rule"]) == (kernel, rule)), key=lambda r: float(r[x]))
        numbers = ([float(row[name]) for row in own] for name in (x, "error", "standard_error"))
        found.append(ErrorLine(kernel, rule, *numbers))
    return found


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
    places = [(row["part"], row["case"], row["dim"]) for row in slopes]
    starts = frozenset(i for i in range(1, len(places)) if places[i] != places[i - 1])
    lines = ["± is the standard error by leaving out one data set at a time", TRANSFORM, *origin]
    return Sheet(caption, header, body, lines, starts=starts, folded=folded)


def _unique(values: Iterable) -> list:
    return list(dict.fromkeys(values))

"""Log-log plots of the estimators' errors, as PNG and SVG on white."""

from collections.abc import Callable
from pathlib import Path

from fourierformer.analysis.rates import Row

COLOURS = ("#0072b2", "#d55e00", "#00805f", "#a8538b", "#8a6800", "#3b7fa8", "#555555")
STYLES = {"plancherel": "-", "theorem": "--", "cross-validation": ":"}
ERROR = {"density": "MISE", "regression": "mean squared error"}


def plot_rates(rows: list[Row], part: str, folder: Path) -> list[Path]:
    """Error against N: a panel a case, a colour a kernel, a line style a rule for the radius."""
    return _plot(
        [row for row in rows if row.rule in STYLES],
        part,
        "samples N",
        lambda row: row.count,
        folder / f"estimator_{part}",
    )


def plot_correlation(rows: list[Row], part: str, folder: Path) -> list[Path]:
    """Error against the correlation of the features, every estimator at its best."""
    path = folder / f"estimator_{part}_correlation"
    return _plot(
        [row for row in rows if row.rule not in STYLES], part, "correlation", lambda row: row.correlation, path
    )


def _plot(rows: list[Row], part: str, x_label: str, x: Callable[[Row], float], path: Path) -> list[Path]:
    import matplotlib
    from matplotlib.figure import Figure

    rows = [row for row in rows if row.part == part]
    by_count = x_label.startswith("samples")
    panels = list(dict.fromkeys((row.case if by_count else "normal", row.dim) for row in rows))
    figure = Figure(figsize=(3.3 * len(panels) + 1.6, 3.3), layout="constrained")
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    for place, (case, dim) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        shown = [row for row in rows if row.dim == dim and (row.case == case or not by_count)]
        _curves(axes, shown, kernels, x)
        axes.set(title=f"{case}, D = {dim}", xlabel=x_label, yscale="log", xscale="log" if by_count else "linear")
        if place == 0:
            axes.set_ylabel(ERROR[part])
        axes.grid(alpha=0.2, which="both", linewidth=0.5)
    handles = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure.savefig(written[0], dpi=150)
        figure.savefig(written[1], metadata={"Date": None})
    return written


def _curves(axes, rows: list[Row], kernels: list[str], x: Callable[[Row], float]) -> None:
    for kernel, rule in dict.fromkeys((row.kernel, row.rule) for row in rows):
        line = sorted((row for row in rows if (row.kernel, row.rule) == (kernel, rule)), key=x)
        colour = COLOURS[kernels.index(kernel) % len(COLOURS)]
        axes.errorbar(
            [x(row) for row in line],
            [row.mean for row in line],
            [row.standard_error for row in line],
            color=colour,
            linewidth=0.6,
            fmt="none",
        )
        axes.plot(
            [x(row) for row in line],
            [row.mean for row in line],
            color=colour,
            linestyle=STYLES.get(rule, "-"),
            marker="o",
            markersize=2.5,
            linewidth=1.2,
            label=kernel if rule not in ("theorem", "cross-validation") else f"{kernel}, {rule}",
        )

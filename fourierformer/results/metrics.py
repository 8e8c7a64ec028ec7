"""What is measured: how a metric is called, written and compared, and what the tables of a task show beside it."""

import math
from dataclasses import dataclass

Column = tuple[str, str]  # (split, protocol)


@dataclass(frozen=True)
class Metric:
    name: str  # in sentences and charts
    short: str  # in heads of columns
    decimals: int
    unit: str = ""
    higher_is_better: bool = False
    logarithmic: bool = False  # its curve is drawn on a logarithmic scale
    skipped: float = 0.1  # the share of training whose curve may leave the frame, or it would flatten all that follows

    @property
    def axis(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


METRICS = {
    "ppl": Metric("perplexity", "ppl", 2, logarithmic=True),
    "bpc": Metric("bits per character", "bpc", 4),
    "bpd": Metric("bits per dimension", "bpd", 4),
    "top1": Metric("top-1", "top-1", 2, unit="%", higher_is_better=True, skipped=0.25),
    "top5": Metric("top-5", "top-5", 2, unit="%", higher_is_better=True, skipped=0.25),
    "head_distance": Metric("distance between heads", "head distance", 2, higher_is_better=True),
    "head_distance_sd": Metric("its sd over layers", "sd over layers", 2),
    "loss": Metric("loss", "loss", 3, unit="nats"),
}


@dataclass(frozen=True)
class Task:
    unit: str  # what training consumes: a summary has <unit>_per_s
    beside: tuple[str, ...]  # metrics a table shows next to the primary one
    scored: tuple[str, ...]  # numbers of an evaluation that must agree before two may be compared
    usual: tuple[Column, ...]  # columns of a table without any measurement


LANGUAGE = Task("tokens", (), ("context", "stride", "tokens"), (("valid", "segment"), ("test", "segment")))
VISION = Task("images", ("top5",), ("images",), (("valid", "best"),))


def metric(key: str) -> Metric:
    """A metric this version does not know is shown under its own name; lower counts as better, as for every loss."""
    return METRICS.get(key, Metric(key, key or "metric", 3))


def task_of(key: str) -> Task:
    """Decided by the metric: even a run that failed has recorded its primary one."""
    return VISION if key in ("top1", *VISION.beside) else LANGUAGE


def metric_text(value: float, key: str, *, unit: bool = False) -> str:
    """Two decimals for perplexities and accuracies, four for bits; what is not finite is spelled out."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    # a diverged model's perplexity needs its size, not its decimals
    text = f"{value:.3g}" if abs(value) >= 1e7 else f"{value:,.{metric(key).decimals}f}"
    return f"{text} {metric(key).unit}" if unit and metric(key).unit else text


def change_text(value: float, baseline: float, key: str) -> str:
    """How far a value is from its baseline: in points where both are per cent, else in per cent of the baseline."""
    if metric(key).unit == "%":
        return f"{value - baseline:+.{metric(key).decimals}f} points"
    return f"{100 * (value / baseline - 1):+.1f}%"

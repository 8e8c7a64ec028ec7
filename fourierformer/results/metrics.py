"""Metrics by their keys, and the task behind a row of numbers."""

from fourierformer.tasks import Metric, Task, tasks

# of every task: what the loop and scripts/head_redundancy.py measure
COMMON = (
    Metric("head_distance", "distance between heads", "head distance", 2, higher_is_better=True),
    Metric("head_distance_sd", "its sd over layers", "sd over layers", 2),
    Metric("loss", "loss", "loss", 3, unit="nats"),
)


def metrics() -> dict[str, Metric]:
    return {metric.key: metric for metric in (*(m for task in tasks() for m in task.metrics), *COMMON)}


def metric(key: str) -> Metric:
    """A metric this version does not know is shown under its own name; lower counts as better, as for every loss."""
    return metrics().get(key) or Metric(key, key or "metric", key, 3)


def task_behind(name: str, primary: str) -> Task:
    """By name; else the one that measures `primary` (rows that do not name their task); else the first."""
    known = tasks()
    measuring = [task for task in known if primary in [metric.key for metric in task.metrics]]
    return next((task for task in known if task.name == name), (measuring or known)[0])


def metric_text(value: float, key: str, *, unit: bool = False) -> str:
    return metric(key).text(value, unit=unit)


def change_text(value: float, baseline: float, key: str) -> str:
    """How far a value is from its baseline: in points where both are per cent, else in per cent of the baseline."""
    if metric(key).unit == "%":
        return f"{value - baseline:+.{metric(key).decimals}f} points"
    return f"{100 * (value / baseline - 1):+.1f}%"

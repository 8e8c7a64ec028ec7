"""Names, units and direction of all metrics, and the order and names of evaluations."""

from fourierformer.tasks import Column, Metric, Task, tasks

HEADS = "heads"  # the protocol of scripts/head_redundancy.py
SPLITS = ("valid", "test")
# metrics of every task: what the loop and scripts/head_redundancy.py measure
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


def column_order(column: Column) -> tuple:
    """As the tasks order their protocols; others follow alphabetically."""
    split, protocol = column
    protocols = list(dict.fromkeys(protocol for task in tasks() for protocol in task.protocols))
    rank = {name: i for names in (SPLITS, protocols) for i, name in enumerate(names)}
    return rank.get(protocol, len(rank)), protocol, rank.get(split, len(rank)), split


def column_text(column: Column) -> str:
    """'test sliding', 'valid ema best'."""
    return f"{column[0]} {protocol_text(column)}"


def protocol_text(column: Column) -> str:
    return column[1].replace("_", " ")

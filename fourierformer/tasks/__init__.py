"""The kinds of training there are, by name. A new one is one file of this folder that registers an object:
docs/extend.md.

Objectives and trained models need torch, which takes seconds to load: they are in files of their own, imported when a
run is built.
"""

import importlib
import pkgutil
from functools import cache

from fourierformer.errors import SetupError
from fourierformer.tasks.base import AnyCorpus, Column, Compilable, Metric, Task
from fourierformer.training.objective import Objective, OnProgress, Poll

__all__ = [
    "AnyCorpus",
    "Column",
    "Compilable",
    "Metric",
    "Objective",
    "OnProgress",
    "Poll",
    "Task",
    "register",
    "task_named",
    "tasks",
]

_tasks: dict[str, Task] = {}


def register(task: Task) -> None:
    _tasks[task.name] = task


def tasks() -> list[Task]:
    """Every task, in the order of their registration. Each file of this folder registers its own: no list is edited."""
    _import_all(tuple(__path__))
    return list(_tasks.values())


@cache  # a report calls `tasks` hundreds of times
def _import_all(folders: tuple[str, ...]) -> None:
    for module in pkgutil.iter_modules(folders):
        if not module.name.endswith(("_objective", "trained")):
            importlib.import_module(f"{__name__}.{module.name}")


def task_named(name: object) -> Task:
    task = next((task for task in tasks() if task.name == name), None)
    if task is None:
        raise SetupError(f"task={name}: expected {' or '.join(task.name for task in tasks())}")
    return task

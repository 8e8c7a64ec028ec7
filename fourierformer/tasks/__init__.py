"""The kinds of training there are, by name. A new one is one file that registers an object: docs/extend.md."""

from importlib import import_module

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

# each registers itself on import
BUILT_IN = tuple(f"fourierformer.tasks.{name}" for name in ("language", "classification", "masked", "seq2seq"))
_tasks: dict[str, Task] = {}


def register(task: Task) -> None:
    _tasks[task.name] = task


def tasks() -> list[Task]:
    """Every task, in the order of their registration."""
    for module in BUILT_IN:
        import_module(module)
    return list(_tasks.values())


def task_named(name: object) -> Task:
    task = next((task for task in tasks() if task.name == name), None)
    if task is None:
        raise SetupError(f"task={name}: expected {' or '.join(task.name for task in tasks())}")
    return task

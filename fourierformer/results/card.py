"""The model card of a run: what it is, how it was trained and measured, what it is not good for."""

from fourierformer.provenance import without_folders
from fourierformer.results.collection import collect
from fourierformer.results.comparison import comparison, evaluations
from fourierformer.results.formats import markdown_grid
from fourierformer.results.metrics import column_order, column_text, metric, metric_text, task_behind
from fourierformer.results.runs import Run
from fourierformer.results.statistics import half_width
from fourierformer.tasks import Task

PAPER = """@inproceedings{nguyen2022fourierformer,
  title     = {FourierFormer: Transformer Meets Generalized Fourier Integral Theorem},
  author    = {Nguyen, Tan and Pham, Minh and Nguyen, Tam and Nguyen, Khai and Osher, Stanley and Ho, Nhat},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {35},
  pages     = {29319--29335},
  year      = {2022}
}"""


def model_card(
    run: Run, step: int, settings: dict, pipeline: str | None = None, *, last: bool = False, averaged: bool = False
) -> str:
    """The text of README.md beside an exported model. settings: its attention's; pipeline: the hub's word for what it
    does ("text-generation"); last, averaged: which weights of the run these are, as in `load_run`."""
    name = f"{run.field('model')} with {run.field('attention')} attention, on {run.field('data')}"
    knobs = ", ".join(f"{key}={value}" for key, value in settings.items() if key != "name")
    attention = f"{run.field('attention')} ({knobs})" if knobs else run.field("attention")
    return f"""---
license: mit
library_name: fourierformer
{f"pipeline_tag: {pipeline}" if pipeline else ""}
tags: [fourierformer, attention, {run.field("attention")}]
---

# {name}

Trained by the experiment `{run.field("experiment")}` of fourierformer, which compares attentions; {_size(run)}.
The weights are {_weights(last, averaged)} step {step:,}. Attention: {attention}.

```python
import fourierformer

model = fourierformer.from_pretrained("FOLDER")  # this folder, or the name of this repository on the hub
```

## Training

{_training(run)}

## Results

{_results(run, step, last, averaged)}

{_remarks(run)}

## Limits

It was trained to compare mechanisms at a fixed budget, not to be used for decisions about people or facts. It knows
what its training data holds, with that data's errors and prejudices. Numbers are comparable only where data, split and
protocol are the same.

## Licence and citation

The weights have the licence of fourierformer (MIT); the training data has its own, which may limit what you do with
them.

```bibtex
{PAPER}
```
"""


def _weights(last: bool, averaged: bool) -> str:
    """'those of', 'those of the last checkpoint,', 'the moving average of the weights in the last checkpoint,'."""
    if not averaged:
        return "those of the last checkpoint," if last else "those of"
    return f"the moving average of the weights in the {'last' if last else 'best'} checkpoint,"


def _size(run: Run) -> str:
    parameters = run.summary.get("parameters")
    return f"{parameters:,} parameters" if parameters else "unfinished, so without final numbers"


def _training(run: Run) -> str:
    meta, summary = run.meta, run.summary
    versions = ", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items() if version)
    lines = {
        "data": run.field("data"),
        "seed": run.field("seed"),
        "steps": summary.get("steps"),
        summary.get("unit", "samples"): summary.get(summary.get("unit", "")),
        "command": f"`{without_folders(meta['command'])}`" if meta.get("command") else None,
        "commit": f"{meta.get('commit')}{' with uncommitted changes' if run.dirty else ''}",
        "versions": versions,
        "hardware": ", ".join(meta.get("gpus") or []) or meta.get("cpu"),
        "training time": f"{summary['seconds']:,.0f} s" if summary.get("seconds") else None,
    }
    stated = {key: value for key, value in lines.items() if value not in (None, "")}
    rows = [
        (key, f"{value:,}" if isinstance(value, int) and key != "seed" else str(value).replace("|", r"\|"))
        for key, value in stated.items()
    ]
    return markdown_grid(("", "value"), rows)


def _results(run: Run, step: int, last: bool, averaged: bool) -> str:
    """Every evaluation of these weights, and the same over all seeds of its configuration that stand beside it; where
    they were not measured, those of the run's best checkpoint."""
    task, primary = _task(run), str(run.field("primary"))
    measured = {column: numbers for column, numbers in evaluations(run).items() if primary in numbers}
    if not measured:
        return "This run is not finished, or was not measured."
    measured, remark = _of_these_weights(task, run, measured, step, last, averaged)
    rows = comparison(collect(run.path.parent))
    here, group = run.path.resolve(), run.field("group")
    found = [row for row in rows if here in [other.path.resolve() for other in (*row.runs, *row.others)]]
    found += [row for row in rows if row.group == group]  # of a second run of a seed, which is counted once
    row = found[0] if found else None  # none for a run that was set aside
    lines = []
    for column in sorted(measured, key=column_order):
        numbers, cell = measured[column], row.cell(column) if row else None
        over_seeds = "-"
        if cell and (half := half_width(cell)) is not None:
            over_seeds = f"{metric_text(cell.mean, primary)} ± {metric_text(half, primary)}"
        scored = task.scored_text(
            {key: f"{value:,}" if isinstance(value, int) else value for key, value in numbers.items()}
        )
        value = metric_text(numbers[primary], primary, unit=True)
        lines.append((column_text(column), scored, value, over_seeds, str(cell.n if cell else 1)))
    header = ("evaluation", "scored", metric(primary).name, "mean over seeds, 95 % interval", "seeds")
    return remark + markdown_grid(header, lines, (True, True, False, False, False))


def _of_these_weights(task: Task, run: Run, measured: dict, step: int, last: bool, averaged: bool) -> tuple[dict, str]:
    """The evaluations of these weights; where there are none, those of others with a remark."""
    remark = "These weights were not measured. The numbers are those of {}:\n\n"
    if task.protocol_column:  # each protocol has its own weights
        own = {(False, False): "best", (True, False): "last", (True, True): "ema_last"}.get((last, averaged))
        of_these = {column: numbers for column, numbers in measured.items() if column[1] == own}
        return (of_these, "") if of_these else (measured, remark.format("other weights of the run"))
    best = run.summary.get("best")
    is_best = not last or (isinstance(best, dict) and best.get("step") == step)
    return measured, "" if is_best and not averaged else remark.format("the run's best checkpoint")


def _task(run: Run) -> Task:
    return task_behind(str(run.field("task")), str(run.field("primary")))


def _remarks(run: Run) -> str:
    task = _task(run)
    protocols = {protocol for _, protocol in evaluations(run)}
    explained = [f"{name}: {text}" for name, text in task.protocol_notes.items() if name in protocols]
    return "\n".join(f"- {note}" for note in (*explained, *run.summary.get("notes", [])))

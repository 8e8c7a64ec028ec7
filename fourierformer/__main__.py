"""The command `fourierformer`, or `python -m fourierformer`: train models, and show their results.

fourierformer train lm attention=softmax     as train_lm.py does in a copy of the repository
fourierformer train vit --help               as train_vit.py does
fourierformer report runs                    a script of the repository, by its name

Messages and examples name programs as in the repository: `python train_lm.py` is `fourierformer train lm`,
`python scripts/report.py` is `fourierformer report`.
"""

import ast
import runpy
import sys
from pathlib import Path

from fourierformer import __version__
from fourierformer.errors import did_you_mean
from fourierformer.printing import echo
from fourierformer.provenance import SHARE
from fourierformer.training.signals import note_signals

# in the order of use; the other scripts are for work on the repository itself
SCRIPTS = (
    *("doctor", "prepare_data", "tune", "sweep_status", "report", "make_tables"),
    *("evaluate", "generate", "export", "head_redundancy", "robustness", "show_attention"),
)


def main() -> None:
    """Run the subcommand on the command line, and end the process."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if {"-sc", "--shell-completion"} & {name, *arguments}:
        _refuse("this command has no completion by the tab key; train_lm.py in a copy of the repository has")
    if name in ("-h", "--help"):
        echo(help_text())
    elif name == "--version":
        echo(f"fourierformer {__version__}")
    elif name == "train":
        _train(arguments)
    elif name in SCRIPTS:
        path = _script(name)
        sys.argv = [str(path), *arguments]
        runpy.run_path(str(path), run_name="__main__")
    else:
        _refuse(f"no command '{name}'{did_you_mean(name, ('train', *SCRIPTS))}")


def help_text() -> str:
    """The module's docstring, and a line for each command."""
    commands = {f"train {' | '.join(trainings())}": "trains a model; --help has examples"}
    commands |= {name: _first_line(_script(name)) for name in SCRIPTS}
    listed = "\n".join(f"  {name:16} {line}" for name, line in commands.items())
    return f"{(__doc__ or '').strip()}\n\n{listed}\n\nEach of them takes --help."


def trainings() -> dict[str, str]:
    """The words after `train`, each with the config of its script: {"lm": "train_lm", "vit": "train_vit"}."""
    from fourierformer.tasks import tasks

    return {task.subcommand: f"train_{task.subcommand}" for task in sorted(tasks(), key=lambda task: task.script)}


def _train(arguments: list[str]) -> None:
    note_signals()  # before the imports, which an exception would leave half done
    kind, *overrides = arguments or [""]
    configs = trainings()
    if kind not in configs:
        _refuse(f"train what? fourierformer train {' | '.join(configs)} [overrides]")
    from fourierformer.runs.launch import launch

    sys.argv = [f"fourierformer train {kind}", *overrides]
    launch(configs[kind])


def _script(name: str) -> Path:
    return SHARE / "scripts" / f"{name}.py"


def _first_line(script: Path) -> str:
    """The first sentence of a script's docstring, without running it."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0].partition(": python ")[0].removesuffix(".")


def _refuse(message: str) -> None:
    echo(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()

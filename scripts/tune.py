"""Searches hyper-parameters with Optuna, a run per trial; stopped and started again, it goes on.

python scripts/tune.py lm 'optim.lr=tag(log,interval(1e-4,1e-2))' 'model.dropout=interval(0.0,0.3)' --trials 20
python scripts/tune.py vit 'optim.lr=choice(5e-4,1e-3,2e-3)' attention=fourier --trials 3 --name vit_rate

What is searched is written as Hydra writes a sweep: choice(a,b), range(first,last,step), interval(low,high) or
int(interval(low,high)), and tag(log,interval(low,high)) for a logarithmic scale. All other overrides are those of
train_lm.py and train_vit.py. A trial is judged by the best value of its main metric on the validation split; one that
diverges counts as worst. The study is in runs/tune/NAME.db, and several of these commands at once share it. It needs
Optuna: pip install -e '.[tune]'
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep

from fourierformer.__main__ import trainings
from fourierformer.config import RunSpec
from fourierformer.errors import SetupError, check_range
from fourierformer.files import read_json
from fourierformer.provenance import CONFIGS
from fourierformer.results.comparison import differing_values
from fourierformer.runs.console_io import exit_on_user_error
from fourierformer.runs.launch import explain
from fourierformer.runs.sweep import Name
from fourierformer.training.signals import exit_code

SET_UP_ERROR, DIVERGED = 2, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=trainings(), help="what to train")
    parser.add_argument("overrides", nargs="+", help="of which at least one is searched")
    parser.add_argument("--trials", type=int, default=20, help="finished trials of the whole study (default: 20)")
    parser.add_argument("--name", default="study", help="of the study; another search needs another one")
    parser.add_argument("--seed", type=int, default=1, help="of the search, not of the runs (default: 1)")
    with exit_on_user_error():
        sys.exit(search(parser.parse_intermixed_args()))


def search(arguments: argparse.Namespace) -> int:
    """Runs trials until the study has as many as asked for, and shows the best. Returns the exit code."""
    try:
        import optuna
    except ImportError:
        raise SetupError("scripts/tune.py needs Optuna: pip install -e '.[tune]'") from None
    from fourierformer.runs.spec import task_of

    check_range("--trials", arguments.trials, 1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    fixed, searched = split(arguments.overrides)
    spec = spec_of(arguments.kind, [*fixed, *(f"{key}={first}" for key, (first, _) in searched.items())])
    task = task_of(spec)
    primary = task.primary(spec)
    higher_is_better = next(metric.higher_is_better for metric in task.metrics if metric.key == primary)
    file = Path(spec.runs_root) / "tune" / f"{arguments.name}.db"
    study = open_study(file, arguments, "maximize" if higher_is_better else "minimize")
    while len(finished(study)) < arguments.trials:
        trial = study.ask({key: distribution for key, (_, distribution) in searched.items()})
        trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
        number = f"{len(finished(study)) + 1}/{arguments.trials}"
        stop = try_once(study, trial, Name(f"{number} {label(trial.params)}"), arguments.kind, fixed, primary)
        if stop:
            print(f"stopped; the same command goes on with {file}", file=sys.stderr)
            return exit_code(stop)
    show(study, primary, file)
    return 0


def split(overrides: list[str]) -> tuple[list[str], dict[str, tuple[object, Any]]]:
    """The overrides that stay; and the key, a first value and Optuna's distribution of those that are searched."""
    fixed, searched = [], {}
    for text in overrides:
        try:
            (override,) = OverridesParser.create().parse_overrides([text])
        except Exception as error:  # Hydra's, for what is no override
            raise SetupError(explain(error)) from None
        if override.is_sweep_override():
            searched[override.get_key_element()] = distribution_of(override, text)
        else:
            fixed.append(text)
    if not searched:
        raise SetupError("nothing to search: write one override as 'optim.lr=tag(log,interval(1e-4,1e-2))'")
    return fixed, searched


def distribution_of(override, text: str) -> tuple[object, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        whole = isinstance(sweep.start, int) and isinstance(sweep.end, int)
        make = IntDistribution if whole else FloatDistribution
        try:
            return sweep.start, make(sweep.start, sweep.end, log="log" in sweep.tags)
        except ValueError as error:
            raise SetupError(f"{text}: {error}") from None
    if isinstance(sweep, ChoiceSweep) or override.is_discrete_sweep():
        values = [_plain(value) for value in override.sweep_string_iterator()]
        return values[0], CategoricalDistribution(values)
    raise SetupError(f"{text}: search a choice(), a range() or an interval()")


def _plain(text: str) -> object:
    """What an override's value is in a config, as far as Optuna can store it."""
    value = OverridesParser.create().parse_override(f"key={text}").value()
    return value if isinstance(value, bool | int | float | None) else text


def spec_of(kind: str, overrides: list[str]) -> RunSpec:
    """The run that a command trains. SetupError for a mistake in its overrides, before anything is trained."""
    from fourierformer.runs.spec import check_mechanism, read_command

    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            spec = read_command(compose(trainings()[kind], overrides))
        check_mechanism(spec)
        return spec
    except SetupError:
        raise
    except Exception as error:  # Hydra's
        raise SetupError(explain(error)) from None


def open_study(file: Path, arguments: argparse.Namespace, direction: str):
    """The study of this name, new or as it was left. SetupError where it is one of another command."""
    import optuna

    file.parent.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=arguments.name, storage=f"sqlite:///{file}", direction=direction, load_if_exists=True
    )
    command = [arguments.kind, *arguments.overrides]
    earlier = study.user_attrs.setdefault("command", command)
    if earlier != command:
        raise SetupError(f"{file} is the study of '{' '.join(earlier)}': repeat that, or choose another --name")
    study.set_user_attr("command", command)
    # with the seed alone a study that goes on would draw its first trials again
    study.sampler = optuna.samplers.TPESampler(seed=arguments.seed + len(study.trials))
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        host, process = trial.user_attrs.get("process", ("", 0))
        if host == socket.gethostname() and not Path(f"/proc/{process}").exists():
            try_again(study, trial)  # its process was killed
    return study


def finished(study) -> list:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED])


def try_again(study, trial) -> None:
    """Ends a trial without a result, and has its values tried next: the same run resumes at its last checkpoint."""
    study.tell(trial.number, state=_failed())
    study.enqueue_trial(trial.params)


def _failed():
    from optuna.trial import TrialState

    return TrialState.FAIL


def try_once(study, trial, name: Name, kind: str, fixed: list[str], primary: str) -> int | None:
    """Trains with the values of a trial, and tells the study the result. Returns the signal that asked to stop."""
    from optuna.trial import TrialState

    overrides = [*fixed, *(f"{key}={value}" for key, value in trial.params.items())]
    child = Child([sys.executable, "-m", "fourierformer", "train", kind, *overrides], name)
    code = child.wait()
    if child.stop:
        try_again(study, trial)
        return child.stop
    if code == SET_UP_ERROR:
        study.tell(trial, state=TrialState.FAIL)
        raise SetupError(f"{name.prefix}cannot be trained: see above")
    if code in (0, DIVERGED):
        summary = read_json(spec_of(kind, overrides).directory / "summary.json") if code == 0 else None
        value = summary["best"][f"valid_{primary}"] if summary else None
        study.tell(trial, value, TrialState.COMPLETE if summary else TrialState.PRUNED)
        name.say(f"valid {primary} {value:.4g}" if summary else "diverged")
        return None
    study.tell(trial, state=TrialState.FAIL)
    raise SetupError(f"{name.prefix}ended with exit code {code}; the same command tries other values")


@dataclass
class Child:
    """A training in a session of its own: signals reach it through this process, each once."""

    command: list[str]
    name: Name
    stop: int | None = None

    def wait(self) -> int:
        """Prints its lines, with the trial that they are about, until it ends. Returns its exit code."""
        process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

        def pass_on(number: int, frame) -> None:
            self.stop = number
            process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for line in process.stdout or ():
                self.name.say(line)
            return process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def label(values: dict) -> str:
    """'softmax lr=0.00213 dropout=0.1'."""
    short = {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in values.items()}
    first = {key: value for key, value in short.items() if key == "attention"}
    return differing_values([first | short, {}])[0].removeprefix("attention=")


def show(study, primary: str, file: Path) -> None:
    """The best trials, the best one first, and the command that repeats it."""
    better = sorted((trial for trial in finished(study) if trial.value is not None), key=lambda trial: trial.value)
    best = better if study.direction.name == "MINIMIZE" else better[::-1]
    print(f"\n{len(finished(study))} trials, the best by valid {primary} ({file}):")
    for trial in best[:5]:
        print(f"  {trial.value:10.4g}  {label(trial.params)}")
    if best:
        values = " ".join(f"{key}={value}" for key, value in best[0].params.items())
        kind, *overrides = study.user_attrs["command"]
        fixed = " ".join(split(overrides)[0])
        print(f"\npython {trainings()[kind]}.py {fixed} {values}")


if __name__ == "__main__":
    main()

"""Search hyper-parameters with Optuna, one run per trial; after a stop, the same command continues the study.

python scripts/tune.py lm 'optim.lr=tag(log,interval(1e-4,1e-2))' 'model.dropout=interval(0.0,0.3)' --trials 20
python scripts/tune.py vit 'optim.lr=choice(5e-4,1e-3,2e-3)' attention=fourier --trials 3 --name vit_rate

A searched key is written as in a Hydra sweep: choice(a,b), range(first,last,step), interval(low,high),
int(interval(low,high)), and tag(log,interval(low,high)) for a logarithmic scale. All other overrides are those of
train_lm.py and train_vit.py. A trial's value is the best validation value of its main metric; a diverged trial counts
as worst. kill -9 leaves the trial in training without a value. Several processes share the study, runs/tune/NAME.db,
where an interval is searched. Requires Optuna:
pip install -e '.[tune]'.
"""

import argparse
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Transformer
from hydra.errors import HydraException

from fourierformer.__main__ import trainings
from fourierformer.errors import Diverged, SetupError, check_range, short
from fourierformer.files import read_json
from fourierformer.printing import echo
from fourierformer.runs.console_io import Parser, exit_on_user_error
from fourierformer.runs.hydra_errors import explain
from fourierformer.runs.launch import composed, with_home
from fourierformer.runs.spec import check_mechanism, read_command, task_of
from fourierformer.training.signals import STOPPED, exit_code, stop_signals

received: list[int] = []  # signals that asked to stop: no further trial begins


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("kind", choices=trainings(), help="what to train")
    parser.add_argument("overrides", nargs="+", help="overrides, at least one of them searched")
    parser.add_argument("--trials", type=int, default=20, help="finished trials of the whole study (default: 20)")
    parser.add_argument("--name", default="study", help="name of the study; another search needs another name")
    parser.add_argument("--seed", type=int, default=1, help="seed of the search, not of the runs (default: 1)")
    with exit_on_user_error():
        sys.exit(search(parser.parse_intermixed_args()))


def search(arguments: argparse.Namespace) -> int:
    """Run trials until the study has `--trials` of them, and print the best. Returns the exit code."""
    try:
        import optuna
        import sqlalchemy  # of Optuna
        from optuna.trial import TrialState
    except ImportError:
        raise SetupError("scripts/tune.py needs Optuna: pip install -e '.[tune]'") from None
    check_range("--trials", arguments.trials, 1)
    check_range("--seed", arguments.seed, 0, 2**31)  # with the number of trials added, numpy takes it
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    fixed, space = split(list(map(with_home, arguments.overrides)))
    spec = spec_of(arguments.kind, [*fixed, *(override_of(key, first) for key, (first, _) in space.items())])
    if spec.dry_run:
        raise SetupError("dry_run=true trains nothing, so there is no trial to judge: leave it out")
    task = task_of(spec)
    primary = task.primary(spec)
    maximise = next(metric.higher_is_better for metric in task.metrics if metric.key == primary)
    file = Path(spec.runs_root) / "tune" / f"{arguments.name}.db"
    file.parent.mkdir(parents=True, exist_ok=True)
    options = {"direction": "maximize" if maximise else "minimize", "load_if_exists": True}
    try:
        storage = sqlalchemy.URL.create("sqlite", database=str(file)).render_as_string()
        study = optuna.create_study(storage=storage, study_name=arguments.name, **options)
    except sqlalchemy.exc.SQLAlchemyError as error:
        way_out = "restore it from a copy, or choose another --name"
        raise SetupError(f"{file} cannot be used as the database of a study ({short(error)}): {way_out}") from None
    command = [arguments.kind, *arguments.overrides]
    if (earlier := study.user_attrs.get("command", command)) != command:
        raise SetupError(f"{file} is the study of '{' '.join(earlier)}': repeat that, or choose another --name")
    study.set_user_attr("command", command)
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    stopped = f"stopped; the same command goes on with {file}"
    while (done := len(study.get_trials(deepcopy=False, states=ended))) < arguments.trials:
        if received:  # between two trainings, or too late for one to save
            echo(stopped, file=sys.stderr)
            return exit_code(received[0])
        trial = study.ask()
        # with one seed a continued study, and processes that share it, would draw the same trials again
        study.sampler = optuna.samplers.TPESampler(seed=arguments.seed + trial.number)
        for key, (_, distribution) in space.items():
            suggest(trial, key, distribution)
        chosen = [override_of(*item) for item in trial.params.items()]
        echo(f"[{done + 1}/{arguments.trials}] {' '.join(chosen)}", flush=True)
        code = train([sys.executable, "-m", "fourierformer", "train", arguments.kind, *fixed, *chosen])
        if code == 0:
            summary = read_json(spec_of(arguments.kind, [*fixed, *chosen]).directory / "summary.json") or {}
            study.tell(trial, summary["best"][f"valid_{primary}"])
            continue
        study.tell(trial, state=TrialState.PRUNED if code == Diverged.exit_code else TrialState.FAIL)
        if code in STOPPED:
            study.enqueue_trial(trial.params)  # tried next: the same run resumes at its last checkpoint
            echo(stopped, file=sys.stderr)
            return code
        if code != Diverged.exit_code:
            raise SetupError(f"{' '.join(chosen)}: the training ended with exit code {code}, see above")
    echo(f"\n{done} trials, the best by valid {primary} ({file}):")
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    for trial in sorted(complete, key=lambda trial: trial.value, reverse=maximise)[:5]:
        chosen = [override_of(*item) for item in trial.params.items()]
        echo(f"  {trial.value:10.4g}  python {trainings()[arguments.kind]}.py {shlex.join([*fixed, *chosen])}")
    return 0


def suggest(trial, key: str, distribution) -> None:
    """Let the sampler choose a value of a trial."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case CategoricalDistribution():
            trial.suggest_categorical(key, distribution.choices)
        case IntDistribution():
            trial.suggest_int(key, distribution.low, distribution.high, log=distribution.log)
        case FloatDistribution():
            trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)


def override_of(key: str, value: object) -> str:
    """A chosen value as Hydra reads it: None is null there."""
    return f"{key}={'null' if value is None else value}"


def train(command: list[str]) -> int:
    """Run a training, and ask it to stop on each signal that asks this process to. Returns its exit code."""
    process = subprocess.Popen(command)

    def forward(number: int, frame) -> None:
        received.append(number)
        process.terminate()  # SIGTERM for Ctrl-C too: a terminal sends that to both, and a second SIGINT would abort it

    for number in stop_signals():
        signal.signal(number, forward)
    code = process.wait()
    return 128 - code if code < 0 else code


def split(overrides: list[str]) -> tuple[list[str], dict]:
    """Fixed overrides, and {key: (a first value, Optuna's distribution)} of the searched ones."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    fixed, space = [], {}
    for text in overrides:
        try:
            (override,) = OverridesParser.create().parse_overrides([text])
            key, sweep = override.get_key_element(), override.value()
            if key == "sweep":
                raise SetupError(f"{text}: a trial is one run, not a sweep: leave it out, and name its experiment=")
            if isinstance(sweep, Glob):
                raise SetupError(f"{text}: name the values, as in attention=softmax,fourier")
            if isinstance(sweep, IntervalSweep):
                make = IntDistribution if isinstance(sweep.start, int) else FloatDistribution
                space[key] = sweep.start, make(sweep.start, sweep.end, log="log" in sweep.tags)
            elif override.is_sweep_override():
                both = zip(override.sweep_iterator(Transformer.identity), override.sweep_string_iterator(), strict=True)
                values = [v if isinstance(v, bool | int | float | None) else text for v, text in both]
                space[key] = values[0], CategoricalDistribution(values)
            else:
                fixed.append(text)
        except HydraException as error:
            raise SetupError(explain(error)) from None
        except ValueError as error:  # an interval without values
            raise SetupError(f"{text}: {error}") from None
    if not space:
        raise SetupError("nothing to search: write one override as 'optim.lr=tag(log,interval(1e-4,1e-2))'")
    return fixed, space


def spec_of(kind: str, overrides: list[str]):
    """The run that a command trains. SetupError for a mistake in its overrides, before anything is trained."""
    spec = read_command(composed(trainings()[kind], overrides))
    check_mechanism(spec)
    return spec


if __name__ == "__main__":
    main()

"""Measure a trained run again: perplexity under a protocol, top-1 and top-5, or the share of correct answers.

python scripts/evaluate.py runs/wt103_small/... --split test --protocol sliding
python scripts/evaluate.py runs/wt103_small/... --word-swap 0.025
python scripts/evaluate.py runs/wt103_small/... --context 512
python scripts/evaluate.py runs/imagenet_deit_tiny/... --checkpoint last --weights ema
"""

import argparse

from fourierformer.data.text.spec import SWAPPED
from fourierformer.printing import echo
from fourierformer.runs.console_io import add_run_options, chosen_weights, exit_on_user_error
from fourierformer.runs.cpu import let_threads_sleep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(parser)
    parser.add_argument("--split", choices=["train", "valid", "test"], help="default: test for text, valid for images")
    parser.add_argument("--protocol", help="a protocol of its task, for text only; default: what a paper would quote")
    swap = "swap this share of the words of the text, which is then the protocol sliding_swapped (or another)"
    parser.add_argument("--word-swap", type=float, metavar="SHARE", help=swap)
    parser.add_argument("--context", type=int, metavar="TOKENS", help="longest window of text, if not that of training")
    parser.add_argument("--limit", type=int, help="score only so many tokens or images of the split")
    parser.add_argument("--data-root", help="the folder of the data on this machine, if not the one of training")
    arguments = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        evaluate(arguments)


def evaluate(arguments: argparse.Namespace) -> None:
    from fourierformer.runs.parts import chosen_evaluation, open_run
    from fourierformer.runs.spec import stored_spec
    from fourierformer.tracking.console import ConsoleTracker
    from fourierformer.training.precision import autocast

    options = {"data_root": arguments.data_root, "limit": arguments.limit} | chosen_weights(arguments)
    options |= {"word_swap": arguments.word_swap, "context": arguments.context}
    parts, step = open_run(arguments.run, arguments.device, **options)
    split, protocol = chosen_evaluation(parts, arguments.run, arguments.split, arguments.protocol)
    protocol += SWAPPED if arguments.word_swap else ""
    console = ConsoleTracker(1, 1, arguments.run.name)
    try:
        with autocast(parts.device, parts.trainer.precision):
            result = parts.objective.measure(parts.model, split, protocol, lambda: None, console.evaluating)
    finally:
        console.close(0)
    measured = [f"{m.short} {m.text(result[m.key], unit=True)}" for m in parts.task.metrics if m.key in result]
    echo("  ".join([*measured, f"(nll {result['nll']:.4f})"]))
    numbers = {key: f"{value:,}" if isinstance(value, int) else value for key, value in result.items()}
    scored = ", ".join(filter(None, [protocol, parts.task.scored_text(numbers)]))
    averaged = ", averaged weights" if arguments.weights == "ema" else ""
    echo(f"{split} split of {parts.corpus.name}, {scored}, checkpoint of step {step:,}{averaged}")
    for note in [*parts.corpus.notes, *parts.objective.notes()]:
        echo(f"note: {note}")
    own_limit = getattr(stored_spec(arguments.run).evaluation, parts.task.limit_key)
    if own_limit and arguments.limit is None:
        unit = parts.task.limit_key.removeprefix("max_")
        echo(f"note: the run's own results are of {own_limit:,} {unit}: --limit {own_limit} measures those")


if __name__ == "__main__":
    main()

"""Perplexity of a run's best checkpoint: python scripts/evaluate.py runs/... --split test --protocol sliding"""

import argparse
from pathlib import Path

from fourierformer.launch import exit_on_user_error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--split", default="test", choices=["train", "valid", "test"])
    parser.add_argument("--protocol", default="sliding", choices=["segment", "sliding"])
    parser.add_argument("--max-tokens", type=int, help="score only the first so many tokens of the split")
    parser.add_argument("--data-root", help="where the text lies on this machine, if elsewhere than in training")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    with exit_on_user_error():
        evaluate(arguments)


def evaluate(arguments: argparse.Namespace) -> None:
    from fourierformer.build import open_run
    from fourierformer.tracking.console import ConsoleTracker
    from fourierformer.training.precision import autocast

    parts, step = open_run(
        arguments.run, arguments.device, data_root=arguments.data_root, max_tokens=arguments.max_tokens
    )
    console = ConsoleTracker(1, 1, arguments.run.name)
    try:
        with autocast(parts.device, parts.trainer.precision):
            result = parts.task.measure(
                parts.model, arguments.split, arguments.protocol, lambda: None, console.evaluating
            )
    finally:
        console.close(0)
    metric = parts.task.metric
    print(f"{metric} {result[metric]:.3f}  (nll {result['nll']:.4f})")
    print(
        f"{arguments.split} split of {parts.corpus.name}, {arguments.protocol}, context {result['context']}, "
        f"stride {result['stride']}, {result['tokens']:,} tokens scored, checkpoint of step {step:,}"
    )
    for note in parts.corpus.notes:
        print(f"note: {note}")


if __name__ == "__main__":
    main()

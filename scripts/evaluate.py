"""A trained run, measured again: perplexity under a protocol, or top-1 and top-5.

python scripts/evaluate.py runs/wt103_small/... --split test --protocol sliding
python scripts/evaluate.py runs/imagenet_deit_tiny/... --checkpoint last --weights ema
"""

import argparse
from pathlib import Path

from fourierformer.runs.cpu import let_threads_sleep
from fourierformer.runs.launch import exit_on_user_error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--split", choices=["train", "valid", "test"], help="default: test for text, valid for images")
    parser.add_argument(
        "--protocol",
        choices=["segment", "overlapping", "sliding"],
        help="text only; default: sliding, for pixels segment",
    )
    parser.add_argument("--checkpoint", choices=["best", "last"], default="best")
    parser.add_argument("--weights", choices=["raw", "ema"], default="raw", help="ema: their average over the training")
    parser.add_argument("--limit", type=int, help="score only so many tokens or images of the split")
    parser.add_argument("--data-root", help="where the data lies on this machine, if elsewhere than in training")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        evaluate(arguments)


def evaluate(arguments: argparse.Namespace) -> None:
    from fourierformer.runs.parts import open_run
    from fourierformer.tracking.console import ConsoleTracker
    from fourierformer.training.precision import autocast

    parts, step = open_run(
        arguments.run,
        arguments.device,
        data_root=arguments.data_root,
        limit=arguments.limit,
        last=arguments.checkpoint == "last",
        averaged=arguments.weights == "ema",
    )
    what, split = protocol(arguments, parts)
    console = ConsoleTracker(1, 1, arguments.run.name)
    try:
        with autocast(parts.device, parts.trainer.precision):
            result = parts.task.measure(parts.model, split, *what, lambda: None, console.evaluating)
    finally:
        console.close(0)
    if parts.task.unit == "tokens":
        metric = parts.task.metric
        print(f"{metric} {result[metric]:.3f}  (nll {result['nll']:.4f})")
        scored = (
            f"{what[0]}, context {result['context']}, stride {result['stride']}, {result['tokens']:,} tokens scored"
        )
    else:
        print(f"top-1 {result['top1']:.2f} %  top-5 {result['top5']:.2f} %  (nll {result['nll']:.4f})")
        scored = f"centre crops, {result['images']:,} images scored"
    averaged = ", averaged weights" if arguments.weights == "ema" else ""
    print(f"{split} split of {parts.corpus.name}, {scored}, checkpoint of step {step:,}{averaged}")
    for note in [*parts.corpus.notes, *parts.task.notes()]:
        print(f"note: {note}")


def protocol(arguments: argparse.Namespace, parts) -> tuple[tuple[str, ...], str]:
    """The protocol, if the task has several, and the split."""
    from fourierformer.errors import SetupError

    if parts.task.unit == "tokens":
        return (arguments.protocol or parts.task.protocols[-1],), arguments.split or "test"
    split = arguments.split or "valid"
    if arguments.protocol or split not in parts.corpus.splits:
        known = ", ".join(parts.corpus.splits)
        raise SetupError(f"{arguments.run} classifies images: no --protocol, and --split is one of {known}")
    return (), split


if __name__ == "__main__":
    main()

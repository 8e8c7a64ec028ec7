"""Measure a trained run again: perplexity under a protocol, top-1 and top-5, or the share of correct answers.

python scripts/evaluate.py runs/wt103_small/... --split test --protocol sliding
python scripts/evaluate.py runs/wt103_small/... --word-swap 0.025
python scripts/evaluate.py runs/wt103_small/... --context 512
python scripts/evaluate.py hf:gpt2 --data wikitext2              a model of transformers: perplexity per word
python scripts/evaluate.py runs/imagenet_deit_tiny/... --checkpoint last --weights ema
"""

import argparse
import os

from fourierformer.data.text.spec import SWAPPED
from fourierformer.errors import SetupError, check_range
from fourierformer.files import read_json
from fourierformer.printing import echo
from fourierformer.runs.console_io import Parser, add_run_options, chosen_weights, exit_on_user_error
from fourierformer.runs.cpu import let_threads_sleep


def main() -> None:
    parser = Parser(__doc__)
    add_run_options(parser)
    parser.add_argument("--split", choices=["train", "valid", "test"], help="default: test for text, valid for images")
    parser.add_argument("--protocol", help="a protocol of its task, for text only; default: what a paper would quote")
    swap = "swap this share of the words of the text, which is then the protocol sliding_swapped (or another)"
    parser.add_argument("--word-swap", type=float, metavar="SHARE", help=swap)
    parser.add_argument("--context", type=int, metavar="TOKENS", help="longest window of text, if not that of training")
    parser.add_argument("--limit", type=int, help="score only so many tokens or images of the split")
    parser.add_argument("--data-root", help="the folder of the data on this machine, if not the one of training")
    parser.add_argument("--data", help="the text for a model of transformers, as in data=")
    arguments = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        evaluate_published(arguments) if str(arguments.run).startswith("hf:") else evaluate(arguments)


def evaluate(arguments: argparse.Namespace) -> None:
    from fourierformer.provenance import packages_since
    from fourierformer.runs.parts import chosen_evaluation, open_run
    from fourierformer.runs.spec import stored_spec
    from fourierformer.tracking.console import ConsoleTracker
    from fourierformer.training.precision import autocast

    if arguments.data:
        raise SetupError(f"--data {arguments.data} is for a model of transformers (hf:NAME): a run has its own data")
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
    code = packages_since(read_json(arguments.run / "meta.json") or {})
    for note in filter(None, [*parts.corpus.notes, *parts.objective.notes(), code]):
        echo(f"note: {note}")
    own_limit = getattr(stored_spec(arguments.run).evaluation, parts.task.limit_key)
    if own_limit and arguments.limit is None:
        unit = parts.task.limit_key.removeprefix("max_")
        echo(f"note: the run's own results are of {own_limit:,} {unit}: --limit {own_limit} measures those")


def evaluate_published(arguments: argparse.Namespace) -> None:
    from fourierformer.runs.launch import composed, quoted
    from fourierformer.runs.parts import pick_device
    from fourierformer.runs.spec import read_command, task_of
    from fourierformer.tracking.console import ConsoleTracker

    try:
        from fourierformer.integrations.hugging_face.measure import measure_published
    except ModuleNotFoundError:
        raise SetupError("hf: needs transformers: pip install -e '.[transformers]'") from None
    chosen = {"checkpoint": "best", "weights": "raw", "word_swap": None}
    if others := [key for key, default in chosen.items() if getattr(arguments, key) != default]:
        raise SetupError(f"--{others[0].replace('_', '-')} is for runs: leave it out for a model of transformers")
    check_range("--limit", arguments.limit, 100)  # as for a run
    words = [f"data={arguments.data or 'wikitext2'}"]
    words += [f"data.root={quoted(os.path.expanduser(arguments.data_root))}"] if arguments.data_root else []
    spec = read_command(composed("train_lm", words))
    name, split, protocol = str(arguments.run)[3:], arguments.split or "test", arguments.protocol or "overlapping"
    if protocol not in (known := ("segment", "overlapping", "sliding")):
        raise SetupError(f"a model of transformers is measured with --protocol {' or '.join(known)}, not {protocol}")
    corpus, console = task_of(spec).load_data(spec, echo), ConsoleTracker(1, 1, name)
    try:
        result = measure_published(
            name, corpus, split, protocol, context=arguments.context, limit=arguments.limit,
            device=pick_device(arguments.device), on_progress=console.evaluating,
        )  # fmt: skip
    finally:
        console.close(0)
    echo(f"ppl per word {result['word_ppl']:,.2f}  (per token {result['ppl']:,.2f}, nll {result['nll']:.4f})")
    scored = f"context {result['context']}, stride {result['stride']}, {result['tokens']:,} tokens scored"
    echo(f"{split} split of {corpus.name}, {protocol}, {scored}, {result['words']:,} words")


if __name__ == "__main__":
    main()

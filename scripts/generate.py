"""Generate text with a trained language model, or the answer of a trained encoder-decoder.

python scripts/generate.py runs/builtin/... --prompt "the function returns"
python scripts/generate.py runs/builtin_seq2seq/... --prompt "the third of march 1984"
python scripts/generate.py exported/my_model --prompt "the function"     the folder of an exported model
"""

import argparse
import sys

from fourierformer.errors import SetupError
from fourierformer.printing import echo
from fourierformer.runs.console_io import Parser, add_run_options, chosen_weights, exit_on_user_error
from fourierformer.runs.cpu import let_threads_sleep


def main() -> None:
    parser = Parser(__doc__)
    add_run_options(parser)
    parser.add_argument("--prompt", default="", help="beginning of the text (empty = of a line), or the text to answer")
    parser.add_argument("--tokens", type=int, default=60, help="how many to add")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = always the likeliest token")
    parser.add_argument("--top-k", type=int, default=50, help="choose among the k likeliest only; 0 = all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        generate(arguments)


def generate(arguments: argparse.Namespace) -> None:
    from fourierformer.runs.trained import load_run_or_export
    from fourierformer.tasks.trained import TrainedEncoderDecoder, TrainedLanguageModel

    trained = load_run_or_export(arguments.run, arguments.device, **chosen_weights(arguments))
    if isinstance(trained, TrainedEncoderDecoder):  # greedy: no other option applies
        echo(trained.answer(arguments.prompt))
        return
    if not isinstance(trained, TrainedLanguageModel):
        raise SetupError(f"{arguments.run} is not a language model or an encoder-decoder: only these generate text")
    echo(f"decoding {trained.decoding}", file=sys.stderr)
    options = {name: getattr(arguments, name) for name in ("tokens", "temperature", "top_k", "seed")}
    echo(trained.generate(arguments.prompt, **options))


if __name__ == "__main__":
    main()

"""Generates text with a trained language model, or answers one with a trained encoder-decoder.

python scripts/generate.py runs/builtin/... --prompt "the function returns"
python scripts/generate.py runs/builtin_seq2seq/... --prompt "the third of march 1984"
"""

import argparse
import sys
from pathlib import Path

from fourierformer.runs.cpu import let_threads_sleep
from fourierformer.runs.launch import exit_on_user_error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument(
        "--prompt", default="", help="how the text begins, empty = the beginning of a line; or the text to answer"
    )
    parser.add_argument("--tokens", type=int, default=60, help="how many to add")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = always the likeliest token")
    parser.add_argument("--top-k", type=int, default=50, help="choose among the k likeliest only; 0 = all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        generate(arguments)


def generate(arguments: argparse.Namespace) -> None:
    import torch

    from fourierformer.errors import SetupError
    from fourierformer.models.decoding import decoder
    from fourierformer.runs.parts import open_run
    from fourierformer.tasks import Answering

    parts, _ = open_run(arguments.run, arguments.device)
    if isinstance(parts.objective, Answering):  # greedily: no other option applies
        print(parts.objective.answer(parts.model, arguments.prompt))
        return
    if parts.spec.task != "language":
        raise SetupError(
            f"{arguments.run} is not a language model or an encoder-decoder, and only those generate text: choose "
            "another run"
        )
    corpus = parts.corpus
    # an empty prompt starts after a line end: <eos> is id 0 among words, byte 10 among bytes
    prompt = corpus.encode(arguments.prompt) or [0 if corpus.unit == "word" else 10]
    generator = torch.Generator().manual_seed(arguments.seed)
    tokens = list(prompt)
    decode = decoder(parts.model)
    print(f"decoding {decode.name}", file=sys.stderr)
    with torch.inference_mode():
        for _ in range(arguments.tokens):
            log_p = decode.next_token(tokens).cpu()
            tokens.append(pick(log_p, arguments.temperature, arguments.top_k, generator))
    print(corpus.decode(tokens))


def pick(log_p, temperature: float, top_k: int, generator) -> int:
    import torch

    if temperature <= 0:
        return int(log_p.argmax())
    values, ids = log_p.topk(min(top_k, len(log_p)) if top_k > 0 else len(log_p))
    return int(ids[torch.multinomial((values / temperature).softmax(-1), 1, generator=generator)])


if __name__ == "__main__":
    main()

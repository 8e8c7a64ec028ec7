"""Sliding evaluation against one window at a time, in one run: python -m benchmarks.evaluation --model lm_small

Ours batches windows, runs the last layer for the scored query only, and the output layer for scored positions only.
Weights and tokens are random: the time does not depend on them. Parity is checked first; without it no time is printed.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from fourierformer.runs.console_io import exit_on_user_error

MODELS = Path(__file__).parent.parent / "configs" / "model"
REPEATS = 3


def one_window_at_a_time(model, tokens, device) -> float:
    """The protocol to the letter: every window through all layers and the whole output layer, one score of it kept."""
    import numpy as np
    import torch

    length, total = model.config.length, 0.0
    for i in range(len(tokens) - length):
        window = torch.from_numpy(tokens[i : i + length + 1].astype(np.int64)).to(device)
        nll = model(window[None, :-1], window[None, 1:])
        total += (nll.sum() if i == 0 else nll[-1]).item()
    return total / (len(tokens) - 1)


def seconds(actions: list) -> tuple[list[float], list]:
    """Median times and results; the actions take turns, so that a busy moment of the machine hits all of them."""
    times = [[] for _ in actions]
    results = [None for _ in actions]
    for _ in range(REPEATS):
        for number, action in enumerate(actions):
            started = time.perf_counter()
            results[number] = action()
            times[number].append(time.perf_counter() - started)
    return [sorted(t)[REPEATS // 2] for t in times], results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lm_small", choices=sorted(p.stem for p in MODELS.glob("lm_*.yaml")))
    parser.add_argument("--attention", default="softmax", help="any that can be causal and needs no grid")
    parser.add_argument("--vocabulary", type=int, default=33_278, help="WikiText-2's by default")
    parser.add_argument("--cutoffs", type=int, nargs="*", default=[])
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    arguments = parser.parse_args()
    with exit_on_user_error():
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    import numpy as np
    import torch
    import yaml

    from fourierformer import attention
    from fourierformer.models.lm import LMConfig, WordLM
    from fourierformer.tasks.language_objective import LanguageObjective

    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    config = LMConfig(**yaml.safe_load((MODELS / f"{arguments.model}.yaml").read_text()))
    tokens = np.random.default_rng(0).integers(
        0, arguments.vocabulary, config.length + arguments.windows, dtype=np.uint32
    )
    torch.manual_seed(0)
    make = partial(attention.build, arguments.attention)
    model = WordLM(config, arguments.vocabulary, arguments.cutoffs, make).to(device).eval()
    corpus = SimpleNamespace(splits={"train": np.tile(tokens, 2), "test": tokens}, unit="word")
    task = LanguageObjective(corpus, model, global_batch_size=1, micro_batch_size=None, device=device)
    measure = partial(task.measure, model, "test", "sliding", lambda: None, lambda *progress: None)
    with torch.inference_mode():
        (ours, literal), (result, nll) = seconds([measure, partial(one_window_at_a_time, model, tokens, device)])
    if abs(result["nll"] - nll) > 1e-5:
        raise SystemExit(f"not equal: mean NLL {result['nll']:.7f} against {nll:.7f}; no time is printed")
    print(
        f"{arguments.model}, {arguments.attention}, context {config.length}, {arguments.windows} windows, {device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}\n"
        f"one window at a time {literal:.2f} s, ours {ours:.2f} s: {literal / ours:.1f} times as fast"
    )


if __name__ == "__main__":
    main()

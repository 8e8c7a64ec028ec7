"""Time and peak memory of every attention against the number of tokens, in turns with softmax.

    python -m benchmarks.attention                                # everything: 90 minutes at most
    python -m benchmarks.attention --only 'linear_*,performer' --lengths 1024,2048,4096 --causal
    python -m benchmarks.attention --quick                        # short inputs, one turn: shows that it works

A point is a layer with its projections, forward (no gradients) or forward + backward. Every turn calls softmax too, and
a ratio is the median of the ratios of the turns. A full layer gets a sequence, or a grid of patches where it needs one.
Exponents are slopes of log cost against log N over N >= 2,048; a mechanism whose stated cost is linear and whose slope
is above 1.15 is flagged.

On a GPU: batch 8, bfloat16 autocast, CUDA events, the allocator's peak. On a CPU: batch 1, float32, processor time of
one thread, which other programs disturb less; freed memory is kept for the next call. Memory there is the peak of all
tensors that operations return, without scratch inside an operation (clocks.PeakMemory). torch's profiler, which counts
scratch, gave the same but for softmax (at most 1 MiB more). A process grows by up to 2.4 times as much, because it
keeps part of the freed memory.
"""

import argparse
import sys
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from fourierformer.errors import SetupError, did_you_mean
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, REPOSITORY, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error
from fourierformer.runs.cpu import keep_freed_memory

MASKS = ["causal", "full"]
LENGTHS, QUICK_LENGTHS = [2**n for n in range(8, 15)], [64, 128]
REPEATS = {"cpu": 5, "cuda": 20}


def chosen(patterns: list[str]) -> list[str]:
    """The names that fit a pattern, after softmax, the peer of all."""
    from benchmarks.layers import PEER
    from fourierformer.attention import available

    names = available()
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise SetupError(f"--only {pattern}: no attention has this name{did_you_mean(pattern, names)}")
    return [PEER, *(name for name in names if name != PEER and any(fnmatch(name, p) for p in patterns))]


def numbers(text: str) -> list[int]:
    lengths = sorted({int(word) for word in text.split(",")})
    if lengths[0] < 1:
        raise ValueError
    return lengths


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--only", metavar="NAMES", help="names or patterns; softmax always takes part")
    parser.add_argument("--lengths", type=numbers, metavar="N,N,...", help="default: 256,512,1024, ... 16384")
    parser.add_argument("--causal", dest="masks", action="append_const", const="causal", help="default: both")
    parser.add_argument("--full", dest="masks", action="append_const", const="full")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15, help="for the turns of a point, and for one call at most")
    parser.add_argument("--minutes", type=float, default=90, help="for all; no point is started later")
    parser.add_argument("--quick", action="store_true", help="N = 64 and 128, one turn")
    default = "results/measured/attention_<device>.csv; in runs/ where --only, --lengths or --quick choose a part"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"CSV; the plot lies beside it. Default: {default}")
    args = parser.parse_args()
    import torch  # after --help

    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    return args


def complete(args: argparse.Namespace) -> None:
    part = args.only is not None or args.lengths or args.quick
    args.out = args.out or (REPOSITORY / "runs" if part else MEASURED) / f"attention_{args.device}.csv"
    args.names = chosen(["*"] if args.only is None else args.only.split(","))
    args.lengths = args.lengths or (QUICK_LENGTHS if args.quick else LENGTHS)
    args.masks = args.masks or MASKS
    args.repeats = 1 if args.quick else REPEATS[args.device]
    if args.device == "cpu":
        import torch

        torch.set_num_threads(1)


def progress(row) -> str:
    tokens = "-" if row.tokens is None else f"{row.tokens:,}"
    where = f"{tokens:>7}  {row.mask:7}{row.attention:26}{row.what:18}"
    if not row.measured:
        return where + row.status
    ratios = "" if row.time_ratio is None else f"   {row.time_ratio:.3g} and {row.memory_ratio:.3g} times softmax"
    return f"{where}{row.milliseconds:>9.4g} ms{row.mebibytes:>9.4g} MiB{ratios}"


def main() -> bool:
    args = arguments()
    from benchmarks.layers import BATCH, PRECISION, Limits, bench, exponents, memory_limit
    from fourierformer.report.costs import cost_picture

    with exit_on_user_error():
        complete(args)
        thread = ", one thread" if args.device == "cpu" else ""
        layer = f"dim {args.dim}, {args.heads} heads, batch {BATCH[args.device]}, {PRECISION[args.device]}{thread}"
        head = header("-m benchmarks.attention", machine=machine(args.device), layer=layer)
        rows = []
        for row in bench(args, Limits(args.seconds, args.minutes, memory_limit(args.device))):
            rows.append(row)
            print(progress(row), flush=True)
            write_csv(args.out, [asdict(row) for row in rows], head)
        if picture := cost_picture(args.out):
            picture.save(args.out.parent)
    for line in exponents(rows, args):
        print(line)
    print(f"\n{args.out}, and the plot beside it as PNG and SVG")
    return not any(row.status.startswith("failed") for row in rows)


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(0 if main() else 1)

"""The fused kernel's first launches on a GPU: python -m benchmarks.first_contact (or: make first-contact)

Every case has its own process, as many at once as there are cores, and CUDA_LAUNCH_BLOCKING, so that an illegal access,
a failed compilation or a hang affects no other case and names its launch. A case launches every kernel: its heads need
16 features, 32 features and the printed formula. Rows: the errors of output and gradients against float64, the largest
of them over the accuracy rule (`excess`, above 1 is wrong), seconds of the first call, which compiles, and of all
compiled kernels the most registers, bytes of local memory (spilled registers) and of shared memory. Cases of the
paper's shapes come last; they compile what benchmarks.kernel times.

    python -m benchmarks.first_contact --device cpu     # in Triton's interpreter: shows that it works
    compute-sanitizer --target-processes all --tool racecheck python -m benchmarks.first_contact --case tiny
"""

import argparse
import functools
import itertools
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.apart import Ended, apart
from fourierformer.errors import SetupError, short
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, REPOSITORY, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error

NAMES = ("output", "dq", "dk", "dv", "dradius")
RADII = (None, 8.0, 100.0)  # of a head's first coordinate: 16 features, 32 features, the printed formula
PAPER = ("lm_small", "lm_medium", "deit_tiny")
TOKENS = {"cuda": 197, "cpu": 20}
PATIENCE = 150  # seconds for one item of a case: some twelve kernels are compiled
LAUNCHED = "launched"


@dataclass
class Row:
    """One case; errors are relative, in the Euclidean norm, of the worst head."""

    case: str
    mode: str  # "half": float16 features; "precise": the float32 class
    dtype: str
    queries: int
    keys: int
    width: int
    causal: bool
    eps: float
    keep: bool = False  # some keys are left out
    status: str = "not finished"
    output: float | None = None
    dq: float | None = None
    dk: float | None = None
    dv: float | None = None
    dradius: float | None = None
    excess: float | None = None
    first_call_s: float | None = None
    registers: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None

    @property
    def right(self) -> bool:
        return self.status == LAUNCHED and self.excess is not None and self.excess <= 1


def cases(device: str) -> list[Row]:
    tokens = TOKENS[device]
    rows = [
        Row("tiny", mode, "float32", tokens, tokens, width, causal, eps)
        for width, mode in itertools.product((16, 32, 64) if device == "cuda" else (4,), ("half", "precise"))
        for causal, eps in ((True, 1e-6), (False, 0.0))
    ]
    few = min(tokens, 16)
    rows += [
        Row("tiny", "half", "bfloat16", tokens, tokens, 16, True, 1e-6),
        Row("keys left out", "half", "float32", tokens, tokens, 16, False, 1e-6, keep=True),
        Row("few queries", "half", "float32", few, tokens, 16, True, 0.0),
        Row("odd width", "precise", "float32", tokens, tokens, 10, True, 1e-6),
    ]
    if device == "cuda":
        from benchmarks.kernel import SHAPES

        for shape, mode in itertools.product(PAPER, ("half", "precise")):
            _, _, tokens, width, causal = SHAPES[shape]
            dtype = "bfloat16" if mode == "half" else "float32"
            rows.append(Row(shape, mode, dtype, tokens, tokens, width, causal, 1e-6))
    return rows


def attempt(row: Row, device: str) -> Iterator[Row]:
    """Yield the row after the forward pass and after both passes, or with the message of its error."""
    try:
        yield from measure(row, device)
    except Exception as error:
        traceback.print_exc()
        row.status = f"failed: {short(error)}"
        yield row


def measure(row: Row, device: str) -> Iterator[Row]:
    import torch

    from benchmarks.contestants import Contestant, as_call, errors_allowed, gradients, rounded
    from benchmarks.kernel import SHAPES
    from fourierformer.kernels.sinc import sinc_attention

    dtype = getattr(torch, row.dtype)
    tensors, keep = inputs_of(row, device)
    options = {"eps": row.eps, "causal": row.causal, "keep": keep}
    contestant = Contestant(lambda *qkvr: sinc_attention(*qkvr, **options, backend="fused"), dtype, row.mode)
    leaves, doutput = as_call(rounded(tensors, dtype), dtype)
    with contestant.precision():
        started = time.perf_counter()
        output = contestant.function(*leaves)
        _synchronize(device)
        row.status, row.first_call_s = "forward launched", time.perf_counter() - started
        _add_facts(row)
        yield row
        torch.autograd.grad(output, leaves, doutput)
        _synchronize(device)
    row.status, row.first_call_s = LAUNCHED, time.perf_counter() - started
    _add_facts(row)
    reference = functools.partial(sinc_attention, **options, backend="reference")
    found, allowed = errors_allowed(contestant, tensors, reference, errors_of_heads)
    for number, name in enumerate(NAMES):
        setattr(row, name, max(found[number :: len(NAMES)]))
    row.excess = max(f / a for f, a in zip(found, allowed, strict=True))
    yield row
    if row.case in SHAPES:  # compile what the whole shape launches
        batch, heads = SHAPES[row.case][:2]
        *qkv, doutput = (t[:, :1].expand(batch, heads, -1, -1).contiguous() for t in tensors[:4])
        leaves, doutput = as_call([*qkv, doutput, tensors[4][:1].expand(heads, -1)], dtype)
        with contestant.precision():
            started = time.perf_counter()
            gradients(contestant.function, leaves, doutput)
            _synchronize(device)
        row.first_call_s += time.perf_counter() - started
        _add_facts(row)
        yield row


def inputs_of(row: Row, device: str):
    """q, k, v, doutput, radius (H, D), one head per entry of RADII, and keep. Values have a mean of 0.5."""
    import torch

    from benchmarks.contestants import moderate_radius

    torch.manual_seed(0)
    counts = (row.queries, row.keys, row.keys, row.queries)
    q, k, v, doutput = (torch.randn(1, len(RADII), tokens, row.width) for tokens in counts)
    radius = torch.full((len(RADII), row.width), moderate_radius(row.width))
    for head, first in enumerate(RADII):
        if first is not None:
            radius[head, 0] = first
    keep = torch.rand(1, row.keys) < 0.7 if row.keep else None
    numbers = [t.to(device) for t in (q, k, v + 0.5, doutput, radius)]
    return numbers, None if keep is None else keep.to(device)


def errors_of_heads(results: list, truth: list) -> list[float]:
    """As contestants.errors, of the first head, then of the second, and so on."""
    from benchmarks.contestants import errors

    def head(tensors, number: int) -> list:
        return [t[:, number] if t.dim() == 4 else t[number] for t in tensors]

    return [e for number in range(truth[0].shape[1]) for e in errors(head(results, number), head(truth, number))]


def _synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _add_facts(row: Row) -> None:
    """The most registers, spilled bytes and shared memory of the kernels that this process compiled."""
    from fourierformer.kernels.sinc import features, fused

    kernels = (features.choose_nodes, features.write_features, fused.forward, fused.backward, fused.add_parts)
    caches = [cache for kernel in kernels for cache in getattr(kernel, "device_caches", {}).values()]
    compiled = [one for cache in caches for one in cache[0].values()]
    if compiled:
        row.registers = max(one.n_regs for one in compiled)
        row.local_bytes = 4 * max(one.n_spills for one in compiled)
        row.shared_bytes = max(one.metadata.shared for one in compiled)


def finish(row: Row, device: str) -> Row:
    """The case's last row, measured in a process of its own."""
    last = row
    try:
        for last in apart(attempt, row, device, patience=PATIENCE):  # noqa: B007
            pass
    except Ended as error:
        last.status = f"failed after '{last.status}': it {error}"
    return last


def line(row: Row) -> str:
    what = f"{row.case:14} {row.mode:8}{row.dtype:9} N {row.queries:>3} M {row.keys:>3} D {row.width:>3}"
    what += f"{' causal' if row.causal else '       '} eps {row.eps:<6g} "
    if row.excess is None:
        return what + row.status
    found = " ".join(f"{name} {getattr(row, name):.1e}" for name in NAMES)
    facts = "" if row.registers is None else f", {row.registers} registers, {row.local_bytes} B spilled"
    wrong = "" if row.right else f"  WRONG: {row.excess:.1f} times the limit"
    return f"{what}{found}, {row.excess:.2f} of the limit, {row.first_call_s:.1f} s{facts}{wrong}"


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one per core")
    parser.add_argument("--case", help="only cases of this name")
    default = "results/measured/gpu_contact.csv; on a CPU in runs/"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"CSV; default: {default}")
    args = parser.parse_args()
    args.out = args.out or (MEASURED if args.device == "cuda" else REPOSITORY / "runs") / "gpu_contact.csv"
    os.environ |= {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "1"}
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch  # after --help

    if args.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("no GPU: torch sees none. On a CPU: python -m benchmarks.first_contact --device cpu")
    return args


def main() -> bool:
    args = arguments()
    rows = [row for row in cases(args.device) if args.case in (None, row.case)]
    if not rows:
        names = dict.fromkeys(row.case for row in cases(args.device))
        raise SetupError(f"--case {args.case}: there is no such case. Choose from {', '.join(names)}")
    head = header("-m benchmarks.first_contact", machine=machine(args.device))
    with ThreadPoolExecutor(max(1, args.processes)) as pool:
        places = {pool.submit(finish, row, args.device): number for number, row in enumerate(rows)}
        for done in as_completed(places):
            row = rows[places[done]] = done.result()
            print(line(row), flush=True)
            write_csv(args.out, [asdict(row) for row in rows], head)
    return all(row.right for row in rows)


if __name__ == "__main__":
    with exit_on_user_error():
        sys.exit(0 if main() else 1)

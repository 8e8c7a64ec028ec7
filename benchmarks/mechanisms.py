"""The points of benchmarks/attention.py, one after the other: every mechanism at every number of tokens."""

import argparse
import traceback
from collections.abc import Iterator

import torch

from benchmarks.points import PEER, WHAT, Layer, Limits, Row, measure
from fourierformer.errors import SetupError, short


def bench(args: argparse.Namespace, limits: Limits) -> Iterator[Row]:
    """Short inputs first, so that what the time is too short for is the longest ones."""
    refused = set()
    for tokens in args.lengths:
        for mask in args.masks:
            peer, of_peer = None, {}
            for name in args.names:
                rows = [Row(name, mask, tokens, what) for what in WHAT]
                layer = None
                if (name, mask) not in refused and not all(limits.reason(row) for row in rows):
                    layer, refusal = built(name, mask, tokens, args)
                    if refusal:
                        refused.add((name, mask))
                        yield Row(name, mask, None, "", refusal)
                if (name, mask) in refused:
                    continue
                for row in rows:
                    attempt(row, layer, peer, of_peer.get(row.what), limits, args)
                    if name == PEER and row.measured:
                        of_peer[row.what] = row
                    yield row
                peer = layer if name == PEER else peer


def built(name: str, mask: str, tokens: int, args: argparse.Namespace) -> tuple[Layer | None, str]:
    """The layer, or the reason why there is none."""
    try:
        return Layer(name, mask == "causal", tokens, args.dim, args.heads, args.device), ""
    except SetupError as error:
        return None, f"refused: {str(error).partition('. These can')[0]}"


def attempt(row: Row, layer: Layer | None, peer: Layer | None, of_peer: Row | None, limits: Limits, args) -> None:
    """Measures, or says in the row why not. One that fails does not take the others with it."""
    if reason := limits.reason(row):
        row.status = f"skipped: {reason}"
        return
    try:
        measure(row, layer, peer, of_peer, args.seconds, args.repeats)
    except RuntimeError as error:  # torch.OutOfMemoryError is one; on a CPU it has no class of its own
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            row.status = f"skipped: {limits.out_of_memory(row)}"
        else:
            traceback.print_exc()
            row.status = f"failed: {short(error)}"
        if args.device == "cuda":
            torch.cuda.empty_cache()
    limits.note(row)

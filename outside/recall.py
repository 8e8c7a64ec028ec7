"""zoology, multiquery_ar: our data of associative recall is the task of the literature."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from outside.cases import Case


def recall_cases(folder: Path) -> Iterator[Case]:
    """Their sequences and ours obey the same law: one checker for both, and the same distribution of gaps."""
    from fourierformer.data.recall.sequences import draw
    from fourierformer.data.recall.spec import RecallData

    sys.path.insert(0, str(folder))
    vocabulary, count, length, pairs = 64, 2000, 48, 6
    options = {"name": "outside", "layout": "stream", "keys": "words", "length": length, "pairs": pairs}
    options |= {"queries": None, "vocabulary": vocabulary, "previous_token": False, "seed": 0, "held_out": 1}

    def both(gap_power: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        from zoology.data.multiquery_ar import multiquery_ar  # type: ignore[import-not-found]

        theirs = multiquery_ar(vocabulary, count, length, 0, power_a=gap_power, num_kv_pairs=pairs)
        ours = draw(RecallData(**options, gap_power=gap_power), count, 0)  # type: ignore[arg-type]
        labels = torch.full_like(ours.tokens, -100).scatter(1, ours.places, ours.answers)
        return (theirs.inputs, theirs.labels), (ours.tokens, labels)

    def obeyed(gap_power: float) -> None:
        for tokens, labels in both(gap_power):
            keys, values = tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2]
            assert bool((keys >= 1).all() and (keys < vocabulary // 2).all() and (values >= vocabulary // 2).all())
            assert all(len(set(row)) == pairs for part in (keys, values) for row in part.tolist())
            row, place = (labels != -100).nonzero(as_tuple=True)
            assert len(row) == count * pairs
            assert bool((place >= 2 * pairs).all() and (place % 2 == 0).all())
            asked = (keys[row] == tokens[row, place][:, None]).int().argmax(1)
            assert torch.equal(values[row, asked], labels[row, place])

    def alike(gap_power: float) -> None:
        from scipy.stats import chi2_contingency

        slots = (length - 2 * pairs) // 2
        table = [
            torch.bincount(((labels != -100).nonzero()[:, 1] - 2 * pairs) // 2, minlength=slots).tolist()
            for _, labels in both(gap_power)
        ]
        assert chi2_contingency(table).pvalue > 0.001

    for power in (0.01, 0.5, 1.0):
        yield f"layout, values and answers, gap power {power}", partial(obeyed, power)
        yield f"distribution of gaps, gap power {power}", partial(alike, power)

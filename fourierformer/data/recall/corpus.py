"""The sequences by which models are compared: valid and test, with what chance and a perfect search reach on them."""

from functools import cached_property

from fourierformer.data.recall.sequences import Sequences, draw, nearest_is_right
from fourierformer.data.recall.spec import RecallData
from fourierformer.seeds import seed_of


class RecallCorpus:
    """The sequences of valid and test, the same for every run of this data. Drawn at first use: a trained model needs
    none."""

    def __init__(self, data: RecallData):
        self.data, self.name = data, data.name

    @cached_property
    def splits(self) -> dict[str, Sequences]:
        return {split: self.sequences(split) for split in ("valid", "test")}

    @cached_property
    def notes(self) -> list[str]:
        data = self.data
        values, pairs = data.vocabulary - data.vocabulary // 2, data.pairs
        notes = [f"chance: {100 / values:.2g} % for any value, {100 / pairs:.2g} % for a value of the sequence"]
        if data.keys == "vectors":
            share = 100 * nearest_is_right(data, self.splits["test"])
            notes.append(f"the key nearest to the query in angle is right for {share:.1f} % of the queries")
        return notes

    def sequences(self, split: str, times: int = 1) -> Sequences:
        """A split with sequences of `times` the length in training."""
        seed = seed_of("recall", self.data.seed, split, times)
        return draw(self.data, self.data.held_out, seed, times * self.data.length)

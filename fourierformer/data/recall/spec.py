"""The config of associative recall, `configs/data/recall*.yaml`: every key there is a field here."""

from dataclasses import dataclass
from typing import Literal

from fourierformer.errors import LARGEST_COUNT, SetupError, check_name, check_range

CURVE = "curve"  # the protocol of the numbers that describe the whole training
LENGTHS = {"1x": 1, "2x": 2, "4x": 4}  # protocol: length of the sequences / length in training


@dataclass(frozen=True, kw_only=True)
class RecallData:
    """A sequence holds pairs (key, value) and then queries, each a key whose value is the answer.

    layout "pairs": a token is a pair or a query. "stream": keys and values are tokens in turn, as in Zoology (Arora et
    al. 2023). keys "words": ids. "vectors": points on a sphere, and a query is its key rotated by `angle` degrees.
    """

    name: str
    layout: Literal["pairs", "stream"]
    keys: Literal["words", "vectors"]
    length: int  # tokens of a sequence
    pairs: int
    queries: int | None  # null = every pair is asked once
    vocabulary: int  # ids: keys are 1 to vocabulary / 2 - 1, values vocabulary / 2 to vocabulary - 1
    gap_power: float  # a query stands in slot n with probability proportional to n^(gap_power - 1); 1 = uniform
    previous_token: bool  # in a stream: whether a token also carries the token before it
    seed: int  # of valid and test, which are the same in all runs
    held_out: int  # sequences of valid, and as many of test
    dimension: int = 32  # of keys that are vectors
    angle: float = 0.0  # degrees between a query and its key
    norm_spread: float = 0.0  # standard deviation of the logarithm of the norm of a key
    twin_cosine: float | None = None  # null = independent keys; else keys 2i and 2i + 1 have this cosine

    def __post_init__(self):
        check_name("data.name", self.name)
        for key in ("length", "pairs", "queries", "held_out", "dimension"):
            check_range(f"data.{key}", getattr(self, key), 1, LARGEST_COUNT + 1)
        check_range("data.vocabulary", self.vocabulary, 4, LARGEST_COUNT + 1)
        check_range("data.gap_power", self.gap_power, 0, above_low=True)
        check_range("data.seed", self.seed, 0, 2**63)
        check_range("data.angle", self.angle, 0, 180)
        check_range("data.norm_spread", self.norm_spread, 0)
        check_range("data.twin_cosine", self.twin_cosine, -1, 1)
        if self.keys == "vectors" and self.layout == "stream":
            raise SetupError("data.keys=vectors and data.layout=stream: vectors are keys of pairs: data.layout=pairs")
        if self.keys == "vectors" and self.dimension < 2:
            raise SetupError("data.dimension=1: a vector cannot be rotated in one dimension: data.dimension=32")
        self._check_room()

    @property
    def without_effect(self) -> str | None:
        """Why a value has no effect beside the others, with a way out."""
        if self.keys == "words" and (self.angle or self.norm_spread or self.twin_cosine is not None):
            return "data.angle, norm_spread and twin_cosine are for keys that are vectors: data=recall_vectors"
        if self.layout == "pairs" and self.previous_token:
            return "data.previous_token=true has no effect with data.layout=pairs: data=recall_stream has streams"
        return None

    def _check_room(self) -> None:
        if self.asked > self.pairs:
            raise SetupError(
                f"data.queries={self.queries}: each of data.pairs={self.pairs} is asked once at most: "
                f"data.queries={self.pairs}, or null for all"
            )
        needed = self.width * (self.pairs + self.asked)
        if self.length < needed:
            raise SetupError(
                f"data.length={self.length} has no room for {self.pairs} pairs and {self.asked} queries of "
                f"{self.width} token{'s' * (self.width > 1)} each: data.length={needed}, or data.pairs="
                f"{max(1, self.length // (2 * self.width))} with data.queries=null"
            )
        most = self.vocabulary // 2 - 1
        if self.pairs > most and self.keys == "words":
            raise SetupError(
                f"data.vocabulary={self.vocabulary} has {most} keys, too few for data.pairs={self.pairs}: "
                f"data.vocabulary={2 * self.pairs + 2}"
            )
        if self.pairs > self.vocabulary - self.vocabulary // 2:
            raise SetupError(
                f"data.vocabulary={self.vocabulary} has too few values for data.pairs={self.pairs}: "
                f"data.vocabulary={2 * self.pairs}"
            )

    @property
    def asked(self) -> int:
        """Queries of a sequence."""
        return self.pairs if self.queries is None else self.queries

    @property
    def width(self) -> int:
        """Tokens of a pair, and of a query."""
        return 2 if self.layout == "stream" else 1

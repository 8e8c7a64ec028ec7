"""The floor under a sum of signed weights, and the share of queries that it affects: for random features of both signs.

Where the estimated weights of a query nearly cancel, division by their sum would give huge outputs. Such a sum is
raised to `floor` times the sum of the visible key weights; the output of that query is then no average of the values.
"""

import math
import warnings

from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.errors import SetupError

LARGEST_SHARE = 0.1
ADVICE = (
    "in at least one layer attention.floor replaces the sum of weights for more than a tenth of the queries "
    "(`floor_share` in metrics.jsonl): their outputs are no averages of the values, and the loss says little about the "
    "estimated kernel. More attention.features, or attention=performer, whose weights are positive"
)


def check_floor(floor: float) -> None:
    """SetupError unless `floor` is a share, more than 0 and at most 1."""
    if not 0 < floor <= 1:
        raise SetupError(f"attention.floor={floor}: must be more than 0 and at most 1, a share of the key weights")


def floor_diagnostics(floor_share: EvaluationMean) -> dict[str, float]:
    """The share of queries with a raised sum in the last evaluation, for `diagnostics`; warns where it is large."""
    share = floor_share.value()
    if share > LARGEST_SHARE:
        warnings.warn(ADVICE, stacklevel=3)  # one text, so Python shows it once
    return {} if math.isnan(share) else {"floor_share": share}

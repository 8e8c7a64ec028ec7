"""The control without attention: a token is predicted from the token before it alone."""

import pytest
import torch

from fourierformer.attention import Geometry, build
from fourierformer.models.config import LMConfig
from fourierformer.models.lm import WordLM

CONFIG = LMConfig(name="t", layers=3, dim=16, heads=2, inner=32, length=8, dropout=0.0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_prediction_depends_on_the_last_token_only(norm):
    config = LMConfig(**{**vars(CONFIG), "norm": norm})
    model = WordLM(config, 20, [], lambda geometry: build("none", geometry)).double()
    tokens = torch.randint(20, (4, 8), generator=torch.Generator().manual_seed(0))
    other = (tokens + 1) % 20
    changed = torch.cat([other[:, :-1], tokens[:, -1:]], dim=1)
    torch.testing.assert_close(model.next_token(changed), model.next_token(tokens), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model.next_token(other), model.next_token(tokens))


def test_it_adds_nothing():
    layer = build("none", Geometry(dim=16, heads=2, length=8, causal=True))
    assert not layer(torch.full((2, 8, 16), float("inf"))).any()

"""Positions of the language models: added to the embedding, rotations of queries and keys, or none."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.errors import SetupError
from fourierformer.models.config import LMConfig, MaskedLMConfig
from fourierformer.models.lm import WordLM
from fourierformer.models.mlm import MaskedLM
from fourierformer.training.config import OptimConfig
from fourierformer.training.optim import build_optimizer

KINDS = ["sinusoid", "learned", "rotary", "none"]
SHAPE = {"name": "t", "layers": 2, "dim": 32, "heads": 4, "inner": 16, "length": 12, "dropout": 0.0}
EXACT = {"rtol": 0, "atol": 1e-9}


def model(position: str, name: str = "taylor", **keys) -> WordLM:
    torch.manual_seed(0)
    built = WordLM(LMConfig(**SHAPE, position=position, **keys), 50, [], partial(attention.build, name)).double().eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built


def tokens(n: int = 12) -> torch.Tensor:
    return torch.randint(50, (3, n), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("position", KINDS)
def test_step_by_step_is_forward(position):
    lm, text = model(position), tokens()
    hidden, states = lm.hidden(text), lm.start(3)
    for i in range(12):
        log_p, states = lm.step(text[:, i], i, states)
        expected = lm.output.log_probabilities(hidden[:, i], lm.embedding.weight)
        torch.testing.assert_close(log_p, expected, **EXACT)


@pytest.mark.parametrize("position", KINDS)
def test_the_last_positions_alone_are_those_of_the_whole(position):
    lm, text = model(position), tokens()
    torch.testing.assert_close(lm.hidden(text, last=3), lm.hidden(text)[:, -3:], **EXACT)


@pytest.mark.parametrize("position", KINDS)
def test_a_shorter_window_has_the_positions_of_its_last_token(position):
    lm, text = model(position), tokens()
    added = lm._embedded(text, slice(-12, None))[:, -4:]
    torch.testing.assert_close(lm._embedded(text[:, -4:], slice(-4, None)), added, rtol=0, atol=0)


@pytest.mark.parametrize("position", KINDS)
def test_which_models_see_the_order_of_two_tokens_without_a_causal_mask(position):
    torch.manual_seed(0)
    config = MaskedLMConfig(**SHAPE, mask_rate=0.2, position=position)
    masked = MaskedLM(config, 50, [], partial(attention.build, "softmax")).double().eval()
    for parameter in masked.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    text = tokens()
    exchanged = text[:, [1, 0, *range(2, 12)]]
    same = torch.allclose(masked.hidden(text)[:, 5:], masked.hidden(exchanged)[:, 5:], **EXACT)
    assert same == (position == "none")


def test_learned_positions_are_a_parameter_without_weight_decay_and_nothing_else_is_added():
    names = {position: set(model(position).state_dict()) for position in KINDS}
    assert names["learned"] == names["sinusoid"] | {"positions"}
    assert names["rotary"] == names["none"] == names["sinusoid"]
    lm = WordLM(LMConfig(**SHAPE, position="learned"), 50, [], partial(attention.build, "softmax"))
    assert lm.positions.shape == (12, 32)
    assert 0.018 < lm.positions.std() < 0.022
    config = OptimConfig(name="adamw", lr=1e-3, betas=[0.9, 0.99], eps=1e-8, weight_decay=0.1)
    groups = build_optimizer(lm, config).param_groups
    assert [g["weight_decay"] for g in groups if any(p is lm.positions for p in g["params"])] == [0]


def test_a_base_below_1_and_a_mechanism_that_is_not_relative_are_refused():
    with pytest.raises(SetupError, match=r"model\.rotary_base"):
        LMConfig(**SHAPE, rotary_base=0.5)
    with pytest.raises(SetupError, match=r"take attention=fourier_disc\. Set model\.position=sinusoid"):
        model("rotary", "fourier")

"""Decoding with a state gives what reading the window gives; a long text moves on from window to window."""

import pytest
import torch
from torch import Tensor

from fourierformer import attention
from fourierformer.attention import Attention, Geometry
from fourierformer.models.decoding import StateDecoder, WindowDecoder, decoder, pick
from fourierformer.models.lm import LMConfig, WordLM

CONFIG = LMConfig(name="small", layers=2, dim=32, heads=4, inner=32, length=12, dropout=0.0)


class RunningMean(Attention):
    """The mean of the values so far: the simplest state there is."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        counts = torch.arange(1, v.shape[2] + 1, device=v.device)[:, None]
        return v.cumsum(2) / counts

    def start(self, batch: int) -> tuple[Tensor, Tensor]:
        weight = self.qkv.weight
        heads, width = self.geometry.heads, self.geometry.head_dim
        return weight.new_zeros(batch, heads, 1, width), weight.new_zeros(())

    def mix_step(self, q, k, v, x, state):
        total, count = state[0] + v, state[1] + 1
        return total / count, (total, count)


def model(build) -> WordLM:
    torch.manual_seed(0)
    built = WordLM(CONFIG, 50, [], build).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(3)  # at initialisation every mechanism is close to the mean
    return built


def named(name: str):
    return lambda geometry: attention.build(name, geometry)


def has_state(name: str) -> bool:
    layer = attention.build(name, Geometry(dim=32, heads=4, length=12, causal=True))
    return layer.start(1) is not None


STATES = [name for name in attention.available(causal=True, grid=False) if has_state(name)]


@pytest.mark.parametrize("name", [*STATES, "mean"])
def test_step_by_step_is_forward(name):
    lm = model(RunningMean if name == "mean" else named(name))
    tokens = torch.randint(50, (3, CONFIG.length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = lm.hidden(tokens)
        expected = torch.stack([lm.output.log_probabilities(h, lm.embedding.weight) for h in hidden.unbind(1)], 1)
        states = lm.start(3)
        for position in range(CONFIG.length):
            log_p, states = lm.step(tokens[:, position], position, states)
            torch.testing.assert_close(log_p, expected[:, position], rtol=0, atol=1e-9)


def test_the_state_does_not_grow():
    lm = model(RunningMean)
    states = lm.start(1)
    with torch.no_grad():
        for position in range(CONFIG.length):
            _, states = lm.step(torch.tensor([position]), position, states)
    assert [t.shape for state in states for t in state] == [t.shape for state in lm.start(1) for t in state]


def test_a_full_window_goes_on_from_its_newer_half():
    """Token 12 is the first that does not fit: it is read after tokens 6 to 11, at position 6."""
    lm = model(RunningMean)
    text = torch.randint(50, (20,), generator=torch.Generator().manual_seed(2)).tolist()
    decode = StateDecoder(lm)
    with torch.no_grad():
        log_p = [decode.next_token(text[: n + 1]) for n in range(20)]
        window = torch.tensor([text[6:13] + [0] * 5])  # later tokens do not matter
        hidden = lm.hidden(window)[:, 6]
        expected = lm.output.log_probabilities(hidden, lm.embedding.weight)[0]
    torch.testing.assert_close(log_p[12], expected, rtol=0, atol=1e-9)


def test_a_prompt_longer_than_the_window_begins_with_its_end():
    lm = model(RunningMean)
    text = list(range(30))
    with torch.no_grad():
        whole = StateDecoder(lm).next_token(text)
        end = StateDecoder(lm).next_token(text[-CONFIG.length :])
        window = WindowDecoder(lm).next_token(text)
    assert torch.equal(whole, end)
    torch.testing.assert_close(whole, window)  # a full window has the same positions either way


def test_who_has_no_state_reads_the_window():
    assert isinstance(decoder(model(named("softmax"))), WindowDecoder)
    assert isinstance(decoder(model(RunningMean)), StateDecoder)


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-300, 1e-40, 1e-20])
@pytest.mark.parametrize("top_k", [0, 3])
def test_the_colder_the_likelier_down_to_any_temperature(temperature, top_k):
    log_p = torch.randn(50, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    assert pick(log_p, temperature, top_k, torch.Generator()) == log_p.argmax()


@pytest.mark.parametrize(("top_k", "kept"), [(0, [0, 1, 2, 3]), (2, [1, 3])])
def test_samples_follow_the_law_at_a_temperature(top_k, kept):
    """At 1/2 the squares of the probabilities, of the likeliest alone: 2,000 draws."""
    log_p, generator = torch.tensor([0.1, 0.4, 0.2, 0.3]).log(), torch.Generator().manual_seed(0)
    drawn = torch.tensor([pick(log_p, 0.5, top_k, generator) for _ in range(2000)])
    expected = torch.zeros(4)
    expected[kept] = log_p[kept].exp().square() / log_p[kept].exp().square().sum()
    shares = drawn.bincount(minlength=4) / 2000
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / 2000).sqrt()).all()

"""The encoder-decoder: what each position may see, greedy decoding, the counts of Vaswani et al., a copy task."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.models.config import Seq2SeqConfig
from fourierformer.models.seq2seq import EncoderDecoder, greedy

PAD, BEGIN, END, V = 0, 1, 2, 13
SHAPE = {"layers": 2, "dim": 16, "heads": 2, "inner": 32, "source_length": 9, "target_length": 7, "dropout": 0.0}
MARKS = {"begin": BEGIN, "end": END, "padding": PAD}
NAMES = ["softmax", "fourier_matched", "linear_elu"]


def model_of(encoder="softmax", decoder=None, cross=None, *, seed=0, std=0.4, **changes) -> EncoderDecoder:
    torch.manual_seed(seed)
    names = {"encoder": encoder, "decoder": decoder or encoder, "cross": cross or encoder}
    builders = {part: partial(attention.build, name) for part, name in names.items()}
    model = EncoderDecoder(Seq2SeqConfig(name="t", **SHAPE | changes), V, builders).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)
    return model.double()


def texts(rows=5, length=9):
    """Sources of 3 to 9 tokens with their masks, and inputs of the decoder."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.tensor([3, 9, 4, 7, 5])[:rows, None]
    keep = torch.arange(length) < lengths
    source = torch.randint(3, V, (rows, length), generator=draw).masked_fill(~keep, PAD)
    return source, keep, torch.randint(3, V, (rows, 6), generator=draw)


@pytest.mark.parametrize("name", NAMES)
def test_padding_of_the_source_is_never_read(name):
    model = model_of(name)
    source, keep, inputs = texts()
    garbage = torch.where(keep, source, torch.randint(3, V, source.shape))
    expected = model.logits(inputs, model.encode(source, keep), keep)
    memory = model.encode(garbage, keep)
    torch.testing.assert_close(model.logits(inputs, memory, keep), expected)
    torch.testing.assert_close(model.logits(inputs, memory.masked_fill(~keep[..., None], torch.nan), keep), expected)
    short = source[:1, :3]  # the first source has three tokens: as if there were no padding at all
    alone = model.logits(inputs[:1], model.encode(short, keep[:1, :3]), keep[:1, :3])
    torch.testing.assert_close(alone, expected[:1])


@pytest.mark.parametrize("name", NAMES)
def test_the_decoder_sees_the_whole_source_and_no_later_token(name):
    model = model_of(name)
    source, keep, inputs = texts()
    before = model.logits(inputs, model.encode(source, keep), keep)
    later = inputs.clone()
    later[:, 4:] = BEGIN
    after = model.logits(later, model.encode(source, keep), keep)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert (after[:, 4:] - before[:, 4:]).abs().amax(-1).min() > 1e-6
    for row, place in enumerate(keep.sum(1) - 1):  # the last token of a source reaches the first one of the answer
        other = source.clone()
        other[row, place] = BEGIN
        changed = model.logits(inputs, model.encode(other, keep), keep) - before
        assert changed[row, 0].abs().max() > 1e-6
        assert changed[torch.arange(len(source)) != row].abs().max() == 0


@pytest.mark.parametrize("names", [("softmax",), ("linear_elu",), ("softmax", "fast_weight", "fourier_matched")])
def test_greedy_is_the_likeliest_next_token_of_full_forward_passes(names):
    """By reading everything again for every token, without a state, one source at a time."""
    model = model_of(*names, seed=5, std=1.0)
    with torch.no_grad():
        model.output_bias[END] = 2.0  # for some of the answers
    source, keep, _ = texts()
    found = greedy(model, source, keep, **MARKS)
    ends = 0
    for row in range(len(source)):
        answer = [BEGIN]
        while len(answer) <= SHAPE["target_length"] and answer[-1] != END:
            memory = model.encode(source[row, None], keep[row, None])
            answer.append(int(model.logits(torch.tensor([answer]), memory, keep[row, None])[0, -1].argmax()))
        ends += answer[-1] == END
        expected = torch.tensor(answer[1:] + [PAD] * (found.shape[1] - len(answer) + 1))
        assert torch.equal(found[row], expected)
    assert 0 < ends < len(source)
    assert (model.start(1) is None) == (names == ("softmax",))


POSITIONS = ["sinusoid", "learned", "rotary", "none"]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("position", POSITIONS)
def test_token_by_token_is_all_together_with_every_norm_and_position(position, norm):
    model = model_of("softmax", "taylor", position=position, norm=norm)
    source, keep, inputs = texts()
    memory = model.encode(source, keep)
    logits, states = model.logits(inputs, memory, keep), model.start(5)
    for i in range(6):
        found, states = model.step(inputs[:, i], i, memory, keep, states)
        torch.testing.assert_close(found, logits[:, i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("position", POSITIONS)
def test_without_positions_the_order_of_the_source_does_not_matter(position):
    model = model_of(position=position)
    source, keep, inputs = texts()
    keep = torch.ones_like(keep)
    before, after = (model.logits(inputs, model.encode(s, keep), keep) for s in (source, source.flip(1)))
    assert torch.allclose(before, after) == (position == "none")


def test_rotations_of_the_encoder_see_differences_of_positions_alone():
    """Tokens that are moved by padding on the left have the outputs that they had."""
    model = model_of(position="rotary")
    source, keep, _ = texts()
    moved, real = (torch.nn.functional.pad(x, (3, 0)) for x in (source[:, :6], keep[:, :6]))
    memory = model.encode(source[:, :6], keep[:, :6])
    torch.testing.assert_close(model.encode(moved, real)[:, 3:][real[:, 3:]], memory[keep[:, :6]])
    assert model.positions is None
    assert all(layer.cross.geometry.rotary_base is None for layer in model.decoder)


def test_norms_before_the_parts_and_after_both_stacks():
    model = model_of(norm="pre")
    source, keep, inputs = texts()
    h = model._embedded(source)
    for layer in model.encoder:
        h = h + layer.attention(layer.attention_norm(h), keep=keep)
        h = h + layer.feed_forward(layer.feed_forward_norm(h))
    memory = torch.nn.functional.layer_norm(h, (16,), model.encoder_norm.weight, model.encoder_norm.bias)
    torch.testing.assert_close(model.encode(source, keep), memory)
    h = model._embedded(inputs)
    for layer in model.decoder:
        h = h + layer.attention(layer.attention_norm(h))
        h = h + layer.cross(layer.cross_norm(h), memory, keep=keep)
        h = h + layer.feed_forward(layer.feed_forward_norm(h))
    expected = model.decoder_norm(h) @ model.embedding.weight.T + model.output_bias
    torch.testing.assert_close(model.logits(inputs, memory, keep), expected)


def test_mechanisms_are_told_where_they_are():
    """Their longest sequence, whether they may look ahead, and a number that no other layer of the model has."""
    seen = []

    def recording(geometry: Geometry):
        seen.append(geometry)
        return attention.build("softmax", geometry)

    config = Seq2SeqConfig(name="t", **SHAPE, position="rotary")
    EncoderDecoder(config, V, dict.fromkeys(("encoder", "decoder", "cross"), recording), seed=5)
    shared = {"dim": 16, "heads": 2, "seed": 5}
    encoder = [Geometry(**shared, length=9, causal=False, layer=i, rotary_base=1e4) for i in (0, 1)]
    decoder = [Geometry(**shared, length=7, causal=True, layer=i, rotary_base=1e4) for i in (2, 3)]
    cross = [Geometry(**shared, length=9, causal=False, layer=i) for i in (4, 5)]
    assert sorted(seen, key=lambda geometry: geometry.layer) == [*encoder, *decoder, *cross]
    longer = Seq2SeqConfig(name="t", **SHAPE | {"target_length": 12})
    assert [longer.geometry(part).length for part in ("encoder", "decoder", "cross")] == [9, 12, 12]


def test_an_answer_ends_at_its_end_mark():
    model = model_of()
    with torch.no_grad():
        model.output_bias[END] = 1e3  # always the likeliest
    source, keep, _ = texts()
    assert torch.equal(greedy(model, source, keep, **MARKS), torch.full((5, 1), END))


def test_after_its_end_an_answer_is_padding(monkeypatch):
    """While another row goes on."""
    model, (source, keep, _) = model_of(), texts(2)
    answers = torch.nn.functional.one_hot(torch.tensor([[4, END, 5, 6], [7, 8, 9, END]]), V)
    monkeypatch.setattr(model, "logits", lambda inputs, *_: answers[:, : inputs.shape[1]])
    assert greedy(model, source, keep, **MARKS).tolist() == [[4, END, PAD, PAD], [7, 8, 9, END]]


def test_the_parameters_of_the_base_model():
    """Vaswani et al. 2017, N = 512, F = 2,048, six layers each: an encoder layer 4 N^2 + 2 N F + F + N and two norms of
    2 N; a decoder layer 4 N^2 and a norm more. The authors' 65 million have a vocabulary of about 37,000."""
    config = Seq2SeqConfig(
        name="b", layers=6, dim=512, heads=8, inner=2048, source_length=9, target_length=9, dropout=0.1
    )
    softmax = partial(attention.build, "softmax")
    with torch.device("meta"):
        model = EncoderDecoder(config, 37_000, dict.fromkeys(("encoder", "decoder", "cross"), softmax))
    encoder = 4 * 512**2 + 2 * 512 * 2048 + 2048 + 512 + 4 * 512
    expected = 6 * (2 * encoder + 4 * 512**2 + 2 * 512) + 37_000 * 513
    count = sum(p.numel() for p in model.parameters())
    assert count == expected
    assert 62e6 < count < 66e6


def test_the_encoder_decoder_begins_as_the_language_models():
    torch.manual_seed(0)
    softmax = partial(attention.build, "softmax")
    config = Seq2SeqConfig(name="t", **SHAPE | {"dim": 64, "inner": 128})
    model = EncoderDecoder(config, 200, dict.fromkeys(("encoder", "decoder", "cross"), softmax))
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            assert p.detach().mean() == pytest.approx(1.0, abs=0.015)
            assert p.detach().std() == pytest.approx(0.02, rel=0.4)
        elif p.dim() == 2:
            assert p.detach().std() == pytest.approx(0.02, rel=0.05), name
        else:
            assert not p.any(), name


def copies(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sources of one to four of ten tokens, their masks, and the same tokens with END as targets."""
    keep = torch.arange(4) < torch.randint(1, 5, (rows, 1))
    source = torch.randint(3, V, (rows, 4)).masked_fill(~keep, PAD)
    targets = torch.nn.functional.pad(source, (0, 1))
    return source, keep, targets.scatter(1, keep.sum(1, keepdim=True), END)


@pytest.mark.full("trains")
def test_it_learns_to_copy():
    """Only the source tells the answer: who does not look at it guesses one token in ten, 2.8 % of such answers."""
    model = model_of(layers=1, dim=32).float().train()
    model.apply(lambda module: module.reset_parameters() if isinstance(module, torch.nn.Linear) else None)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(200):
        source, keep, targets = copies(64)
        inputs = torch.cat([torch.full((64, 1), BEGIN), targets[:, :-1]], dim=1)
        optimizer.zero_grad()
        model(source, keep, inputs, targets, PAD).mean().backward()
        optimizer.step()
    source, keep, targets = copies(300)
    answers = greedy(model.eval(), source, keep, **MARKS)
    answers = torch.nn.functional.pad(answers, (0, 7 - answers.shape[1]))[:, :5]
    assert (answers == targets).all(1).float().mean() > 0.2
    assert (answers == targets.roll(1, 0)).all(1).float().mean() < 0.1

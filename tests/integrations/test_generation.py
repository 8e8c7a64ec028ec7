"""`generate` of transformers on our language models: facts that its GenerationTesterMixin tests, which no release of it
contains."""

import pytest
import torch

pytest.importorskip("transformers", reason='transformers is not installed: pip install -e ".[transformers]"')

from transformers import DynamicCache, StoppingCriteriaList

from fourierformer.integrations.hugging_face import FourierFormerConfig, FourierFormerForCausalLM
from fourierformer.models.decoding import WindowDecoder
from tests.helpers.command_line import spec_of

WORDS, WINDOW = 30, 8
PADDING = WORDS  # an id that the vocabulary lacks, as the exported tokenizer has it
SMALL = ["model.layers=2", "model.dim=32", "model.heads=2", "model.inner=16", f"model.length={WINDOW}"]
PROMPT = torch.tensor([[5, 17, 3]])
GREEDY = {"do_sample": False, "max_new_tokens": 12}  # beyond the window


@pytest.fixture(scope="module")
def model():
    spec = spec_of(*SMALL, "attention=fourier_matched")
    torch.manual_seed(0)
    made = FourierFormerForCausalLM(FourierFormerConfig(run=spec.values, vocab_size=WORDS)).eval()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.7)
    return made


def continued(model, ids: list[int], count: int) -> list[int]:
    """Our own decoding, always of the likeliest token."""
    decoder = WindowDecoder(model.model)
    with torch.inference_mode():
        for _ in range(count):
            ids = [*ids, int(decoder.next_token(ids).argmax())]
    return ids


def test_greedy_decoding_is_ours_with_and_without_a_cache(model):
    expected = continued(model, PROMPT[0].tolist(), 12)
    assert len(set(expected)) > 5  # not one token again and again
    for use_cache in (True, False):
        assert model.generate(PROMPT, use_cache=use_cache, **GREEDY)[0].tolist() == expected


def test_a_cache_is_refused(model):
    with pytest.raises(ValueError, match="past_key_values"):
        model.generate(PROMPT, past_key_values=DynamicCache(), **GREEDY)
    with pytest.raises(ValueError, match="no cache and reads the whole text"):
        model(PROMPT[:, -1:], past_key_values=DynamicCache())


@pytest.mark.parametrize(
    "option",
    [{"position_ids": torch.arange(len(PROMPT[0]))}, {"output_hidden_states": True}, {"output_attentions": True}],
)
def test_what_it_neither_reads_nor_returns_is_refused(model, option):
    with pytest.raises(ValueError, match=f"leave out {next(iter(option))}"):
        model(PROMPT, **option)
    model(PROMPT, **dict.fromkeys(option, None))
    model(PROMPT, output_hidden_states=False, output_attentions=False)


def test_embeddings_in_place_of_ids_are_refused(model):
    with pytest.raises(ValueError, match="inputs_embeds"):
        model.generate(inputs_embeds=model.get_input_embeddings()(PROMPT), **GREEDY)


def test_another_size_of_the_vocabulary_is_refused_and_changes_nothing(model):
    size = model.config.vocab_size
    with pytest.raises(ValueError, match=f"cannot be resized, its vocabulary has {size} tokens, got {size + 1}"):
        model.resize_token_embeddings(size + 1)
    assert model.resize_token_embeddings(size) is model.resize_token_embeddings() is model.get_input_embeddings()
    assert model.config.vocab_size == size == len(model.get_input_embeddings().weight)


def test_rows_of_a_batch_are_continued_as_alone(model):
    prompts = [[5, 17, 3, 9, 4], [7, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    longest = max(map(len, prompts))
    tokens = torch.tensor([[PADDING] * (longest - len(ids)) + ids for ids in prompts])
    found = model.generate(tokens, attention_mask=(tokens != PADDING).long(), **GREEDY)
    for row, ids in zip(found, prompts, strict=True):
        assert row[longest - len(ids) :].tolist() == continued(model, ids, 12)


def test_rows_of_one_length_need_a_mask_that_says_so(model):
    tokens = torch.tensor([[5, 17, 3], [4, 9, 21]])
    found = model.generate(tokens, attention_mask=torch.ones_like(tokens), **GREEDY)
    assert found.tolist() == [continued(model, ids, 12) for ids in tokens.tolist()]
    with pytest.raises(ValueError, match="2 rows without attention_mask"):
        model.generate(tokens, **GREEDY)


def test_samples_repeat_with_their_seed_and_have_the_probabilities_of_the_model(model):
    options = {"do_sample": True, "top_k": 0, "num_return_sequences": 2000, "max_new_tokens": 1}
    samples = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        samples.append(model.generate(PROMPT, **options)[:, -1])
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    p = model(PROMPT).logits[0, -1].exp()
    share = torch.bincount(samples[2], minlength=WORDS) / 2000
    assert ((share - p).abs() < 5 * (p * (1 - p) / 2000).sqrt() + 1e-3).all()


def test_a_beam_as_wide_as_the_vocabulary_finds_the_likeliest_pair_of_tokens(model):
    first = model(PROMPT).logits[0, -1]
    texts = torch.cat([PROMPT.expand(WORDS, -1), torch.arange(WORDS)[:, None]], dim=1)
    pairs = first[:, None] + model(texts, attention_mask=torch.ones_like(texts)).logits[:, -1]
    found = model.generate(
        PROMPT, num_beams=WORDS, do_sample=False, max_new_tokens=2, length_penalty=0.0, num_return_sequences=3,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    best = pairs.flatten().topk(3)
    torch.testing.assert_close(found.sequences_scores, best.values)
    assert found.sequences[:, -2:].tolist() == [[int(i) // WORDS, int(i) % WORDS] for i in best.indices]


def test_it_ends_after_a_number_of_tokens_at_an_end_mark_or_by_a_criterion(model):
    expected = continued(model, PROMPT[0].tolist(), 12)
    for count in (1, 5):
        assert model.generate(PROMPT, do_sample=False, max_new_tokens=count)[0].tolist() == expected[: 3 + count]
    assert model.generate(PROMPT, do_sample=False, max_length=7)[0].tolist() == expected[:7]
    end = next(i for i in range(5, 15) if expected[i] not in expected[3:i])  # an end mark that comes after others
    assert (
        model.generate(PROMPT, eos_token_id=expected[end], pad_token_id=PADDING, **GREEDY)[0].tolist()
        == expected[: end + 1]
    )

    def long_enough(tokens, scores, **_):
        return torch.full((len(tokens),), tokens.shape[1] >= 9)

    stopped = model.generate(PROMPT, stopping_criteria=StoppingCriteriaList([long_enough]), **GREEDY)
    assert stopped[0].tolist() == expected[:9]


def test_scores_are_log_probabilities(model):
    found = model.generate(PROMPT, return_dict_in_generate=True, output_logits=True, output_scores=True, **GREEDY)
    decoder = WindowDecoder(model.model)
    for place, (logits, scores) in enumerate(zip(found.logits, found.scores, strict=True), start=3):
        torch.testing.assert_close(logits[0], decoder.next_token(found.sequences[0, :place].tolist()))
        torch.testing.assert_close(scores, logits)


def test_the_loss_of_padded_rows_is_that_of_their_tokens(model):
    rows = [[5, 17, 3], [7, 2, 9, 4, 8]]
    tokens = torch.tensor([[PADDING] * (5 - len(row)) + row for row in rows])
    keep = tokens != PADDING
    found = model(tokens, attention_mask=keep.long(), labels=tokens.masked_fill(~keep, -100)).loss
    alone = [model(torch.tensor([row]), labels=torch.tensor([row])).loss * (len(row) - 1) for row in rows]
    torch.testing.assert_close(found, sum(alone) / sum(len(row) - 1 for row in rows))

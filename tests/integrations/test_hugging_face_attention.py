"""Fourier attention in transformers' own models, made from a config: no weights are downloaded."""

import copy
import math

import pytest
import torch
from torch import nn

transformers = pytest.importorskip(
    "transformers", reason='transformers is not installed: pip install -e ".[transformers]"'
)

from transformers import (  # noqa: E402 - after the check that it is there
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    BertConfig,
    LlamaConfig,
    MistralConfig,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
)

from fourierformer import fourier_attention  # noqa: E402
from fourierformer.attention.mechanisms.fourier import matched_radius  # noqa: E402
from fourierformer.errors import SetupError  # noqa: E402
from fourierformer.integrations import hugging_face  # noqa: E402

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
WORDS = {"vocab_size": 60, "max_position_embeddings": 64}
LLAMA = LlamaConfig(**SIZE, **WORDS, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=None)


def build(auto, config, **options):
    torch.manual_seed(0)
    return auto.from_config(config, attn_implementation="fourier", **options)


def trains(model, **inputs):
    """One step of gradient descent lowers the loss; every radius has a gradient."""
    radii = hugging_face.learn_radius(model, per_head=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(**inputs).loss
    before.backward()
    assert all(radius.grad.any() for radius in radii)
    optimizer.step()
    model.eval()
    assert model(**inputs).loss < before


def test_llama_trains_and_generates_as_if_it_had_no_cache():
    model = build(AutoModelForCausalLM, LLAMA)
    tokens = torch.randint(1, 60, (2, 9))
    trains(model, input_ids=tokens, labels=tokens)
    with_cache, without = (
        model.generate(tokens, max_new_tokens=8, do_sample=False, use_cache=c) for c in (True, False)
    )
    assert with_cache.shape == (2, 17)
    assert torch.equal(with_cache, without)
    static = model.generate(
        tokens, max_new_tokens=8, do_sample=False, cache_implementation="static", disable_compile=True
    )
    assert torch.equal(static, without)


def test_it_is_the_formula_of_the_projected_queries_and_keys():
    """One layer's output, by the printed formula, from the inputs that transformers hands over."""
    model = build(AutoModelForCausalLM, LLAMA).double().eval()
    calls = {}

    def keep(module, arguments, result):
        calls["output"] = result[0]

    attention = model.model.layers[0].self_attn
    attention.o_proj.register_forward_pre_hook(lambda _, inputs: calls.update(mixed=inputs[0]))
    attention.register_forward_hook(keep)
    original = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["fourier"]

    def spy(module, q, k, v, mask, **options):
        calls.setdefault("qkv", (q, k, v))
        return original(module, q, k, v, mask, **options)

    transformers.AttentionInterface.register("fourier", spy)
    try:
        model(torch.randint(1, 60, (1, 7)))
    finally:
        transformers.AttentionInterface.register("fourier", original)
    q, k, v = calls["qkv"]
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    z = matched_radius(8, 4) * (q[:, :, :, None] - k[:, :, None])
    weights = (torch.sinc(z / math.pi).prod(-1) ** 4).tril()
    exact = (weights @ v / weights.sum(-1, keepdim=True)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(calls["mixed"], exact)


def test_left_padding_equals_no_padding():
    model = build(AutoModelForCausalLM, LLAMA).double().eval()
    row = torch.randint(1, 60, (1, 6))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), row], 1)
    longer = torch.randint(1, 60, (1, 9))
    mask = torch.tensor([[0, 0, 0, *[1] * 6], [1] * 9])
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    together = model(torch.cat([padded, longer]), attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(together[0, 3:], model(row).logits[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together[1], model(longer).logits[0], rtol=1e-9, atol=1e-9)
    both = model.generate(torch.cat([padded, longer]), attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(both[0, 9:], model.generate(row, max_new_tokens=5, do_sample=False)[0, 6:])


def test_a_sliding_window_hides_what_is_older():
    config = MistralConfig(**SIZE, **WORDS, num_key_value_heads=2, sliding_window=4)
    model = build(AutoModelForCausalLM, config).double().eval()
    tokens = torch.randint(1, 60, (1, 12))
    changed = tokens.clone()
    changed[0, 0] = tokens[0, 0] % 59 + 1
    one, other = (model.model(t).last_hidden_state[0] for t in (tokens, changed))
    assert not torch.equal(one[3], other[3])
    torch.testing.assert_close(one[7:], other[7:], rtol=0, atol=0)  # two layers of four tokens reach 6 back


def test_bert_sees_both_directions_and_no_padding():
    model = build(AutoModelForMaskedLM, BertConfig(**SIZE, **WORDS))
    tokens = torch.randint(1, 60, (2, 9))
    mask = torch.tensor([[1] * 6 + [0] * 3, [1] * 9])
    trains(model, input_ids=tokens, attention_mask=mask, labels=tokens)
    model.double()
    full = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(full[0, :6], model(tokens[:1, :6]).logits[0], rtol=1e-9, atol=1e-9)
    changed = tokens.clone()
    changed[1, 8] = tokens[1, 8] % 59 + 1
    assert not torch.allclose(model(changed, attention_mask=mask).logits[1, 0], full[1, 0], rtol=1e-9)


def built_t5() -> T5ForConditionalGeneration:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 60}
    config = T5Config(**sizes, decoder_start_token_id=0)
    config._attn_implementation = "fourier"
    torch.manual_seed(0)
    return T5ForConditionalGeneration(config)


def test_t5_sees_neither_padding_nor_the_future():
    """Its bias of positions is of the pairs that its masks keep, and of no others."""
    t5, tokens, answers = built_t5().double().eval(), torch.randint(1, 60, (2, 9)), torch.randint(1, 60, (2, 5))
    mask = torch.tensor([[1] * 6 + [0] * 3, [1] * 9])
    padded = t5(input_ids=tokens, attention_mask=mask, decoder_input_ids=answers).logits
    alone = t5(input_ids=tokens[:1, :6], decoder_input_ids=answers[:1]).logits
    torch.testing.assert_close(padded[0], alone[0], rtol=1e-9, atol=1e-9)
    changed = torch.cat([answers[:, :-1], answers[:, -1:] % 59 + 1], 1)
    other = t5(input_ids=tokens, attention_mask=mask, decoder_input_ids=changed).logits
    torch.testing.assert_close(other[:, :-1], padded[:, :-1], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(other[:, -1], padded[:, -1])


def test_weights_drop_out_in_training_alone():
    config = copy.deepcopy(LLAMA)
    config.attention_dropout = 0.5  # Llama has no other dropout
    model, tokens = build(AutoModelForCausalLM, config), torch.randint(1, 60, (1, 9))
    one, other = (model.train()(tokens).logits for _ in range(2))
    assert not torch.allclose(one, other)
    torch.testing.assert_close(model.eval()(tokens).logits, build(AutoModelForCausalLM, LLAMA).eval()(tokens).logits)


def test_vit_and_t5_train():
    vit = build(AutoModelForImageClassification, ViTConfig(**SIZE, image_size=16, patch_size=4, num_labels=3))
    trains(vit, pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([0, 2]))
    t5, tokens = built_t5(), torch.randint(1, 60, (2, 9))
    t5(input_ids=tokens, labels=tokens).loss.backward()
    assert t5.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad.any()


def test_a_model_that_scales_its_queries_has_the_distances_of_those_that_do_not():
    """OPT passes queries times 1 / sqrt(D), and a scaling of 1 in place of 1 / sqrt(D)."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 48, "dropout": 0.0}
    opt = build(AutoModelForCausalLM, transformers.OPTConfig(**sizes, **WORDS, word_embed_proj_dim=32)).double()
    layer, x = opt.model.decoder.layers[0].self_attn, torch.randn(2, 9, 32, dtype=torch.float64)
    q, k, v = (
        projection(x).unflatten(-1, (4, 8)).transpose(1, 2) for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    mixed = fourier_attention(q, k, v, matched_radius(8, 4), causal=True)
    expected = layer.out_proj(mixed.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(layer(x)[0], expected)
    hugging_face.learn_radius(opt)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-6, atol=1e-7)  # the radius is float32


@pytest.mark.full("compiles: other tests compile the layer")
def test_it_compiles_without_a_break():
    model = build(AutoModelForCausalLM, LLAMA).eval()
    tokens = torch.randint(1, 60, (2, 9))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


def test_a_learned_radius_is_saved_and_loaded(tmp_path):
    model = build(AutoModelForCausalLM, LLAMA).eval()
    with torch.no_grad():
        for radius in hugging_face.learn_radius(model, radius=1.5):
            radius += torch.rand(())
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="fourier")
    assert len(hugging_face.load_radius(again, tmp_path)) == 2
    tokens = torch.randint(1, 60, (2, 9))
    assert torch.equal(again.eval()(tokens).logits, model(tokens).logits)
    base = AutoModel.from_pretrained(tmp_path, attn_implementation="fourier")
    hugging_face.load_radius(base, tmp_path)
    assert torch.equal(base(tokens).last_hidden_state, model.model(tokens).last_hidden_state)
    vit = build(AutoModelForImageClassification, ViTConfig(**SIZE, image_size=16, patch_size=4))
    (first, second) = hugging_face.learn_radius(vit)
    with torch.no_grad():
        second += 1
    vit.save_pretrained(tmp_path / "vit")  # under names of earlier versions of transformers
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "vit", attn_implementation="fourier")
    assert hugging_face.load_radius(again, tmp_path / "vit") == [first, second]
    without = build(AutoModelForCausalLM, LLAMA)
    without.save_pretrained(tmp_path / "without")
    with pytest.raises(SetupError, match="has 0 of the radii of its 2 attention layers"):
        hugging_face.load_radius(without, tmp_path / "without")


def test_radii_are_trained_and_saved_by_trainer(tmp_path):
    pytest.importorskip("accelerate", reason="transformers.Trainer needs it: pip install accelerate")
    model = build(AutoModelForCausalLM, LLAMA)
    radii = hugging_face.learn_radius(model, per_head=True)
    before = [radius.detach().clone() for radius in radii]
    tokens = [torch.randint(1, 60, (9,)) for _ in range(6)]
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    options = {
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
    }
    arguments = transformers.TrainingArguments(str(tmp_path), learning_rate=0.01, disable_tqdm=True, **options)
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    trainer.save_model()
    assert not any(torch.equal(radius, start) for radius, start in zip(radii, before, strict=True))
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="fourier")
    for loaded, radius in zip(hugging_face.load_radius(again, tmp_path), radii, strict=True):
        assert torch.equal(loaded, radius)


def test_a_radius_has_no_place_beside_another_attention():
    model = AutoModelForCausalLM.from_config(LLAMA, attn_implementation="sdpa")
    with pytest.raises(SetupError, match="LlamaForCausalLM runs the attention 'sdpa', which has no radius"):
        hugging_face.learn_radius(model)


def test_what_it_cannot_do_is_said():
    with pytest.raises(SetupError, match="Linear has no attention layer"):
        hugging_face.learn_radius(nn.Linear(2, 2))
    forward = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["fourier"]
    for option, value in (("softcap", 50.0), ("s_aux", torch.zeros(1))):
        with pytest.raises(SetupError, match=f"has no {option}, which Linear needs"):
            forward(nn.Linear(2, 2), *[torch.randn(1, 1, 3, 2)] * 3, None, **{option: value})


OWN = ["bloom", "deberta-v2", "openai-gpt", "xlm", "yoso", "longt5", "bigbird_pegasus", "pegasus_x"]


@pytest.mark.parametrize("name", OWN)
def test_a_model_that_would_run_its_own_attention_is_refused(name):
    """BLOOM masks its own scores, and without a mask would see the future; the others never ask for a mask."""
    with torch.device("meta"), pytest.raises(SetupError, match=f"{name} has an attention of its own"):
        build(AutoModel, transformers.AutoConfig.for_model(name))


def test_models_that_leave_causality_to_their_mask_do_not_see_the_future():
    """Layers of BigBird-Pegasus's decoder say is_causal=False; those of Doge have no is_causal and add to the mask."""
    pegasus = transformers.BigBirdPegasusConfig(
        vocab_size=60, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, is_decoder=True
    )  # fmt: skip
    for config in (pegasus, transformers.DogeConfig(**SIZE, **WORDS, num_key_value_heads=2, pad_token_id=0)):
        model = build(AutoModelForCausalLM, config).eval()
        tokens = torch.randint(1, 60, (1, 9))
        changed = torch.cat([tokens[:, :-1], tokens[:, -1:] % 59 + 1], 1)
        one, other = (model(t).logits[0] for t in (tokens, changed))
        torch.testing.assert_close(one[:-1], other[:-1])
        assert not torch.allclose(one[-1], other[-1])


@pytest.mark.parametrize(("per_head", "shape"), [(False, ()), (True, (4, 1))])
def test_a_radius_begins_where_it_is_told_to(per_head, shape):
    radii = hugging_face.learn_radius(build(AutoModelForCausalLM, LLAMA), radius=1.5, per_head=per_head)
    assert all(torch.equal(radius, torch.full(shape, 1.5)) for radius in radii)


def test_learned_radii_are_not_replaced_by_a_second_call():
    model = build(AutoModelForCausalLM, LLAMA)
    hugging_face.learn_radius(model)
    with pytest.raises(SetupError, match="LlamaForCausalLM has learned radii already"):
        hugging_face.learn_radius(model)


def test_radii_per_head_are_as_many_as_the_heads_of_the_layer():
    """Of BART the config's number of heads is the encoder's, of Swin a list."""
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    bart = build(transformers.AutoModelForSeq2SeqLM, transformers.BartConfig(vocab_size=60, **sizes, **heads))
    assert [len(radius) for radius in hugging_face.learn_radius(bart, per_head=True)] == [4, 2, 2]
    tokens = torch.randint(3, 60, (2, 9))
    bart(tokens, labels=tokens).loss.backward()

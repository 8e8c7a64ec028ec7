"""transformers: its models with our attention, in three steps of its Trainer."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from outside.cases import Case


def model_cases(_: Path) -> Iterator[Case]:
    import transformers as hf

    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    words, tokens = {"vocab_size": 60, "max_position_embeddings": 64}, torch.randint(1, 60, (6, 9))
    text = [{"input_ids": row, "labels": row} for row in tokens]
    images = [{"pixel_values": torch.randn(3, 16, 16), "labels": number % 3} for number in range(6)]
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
    for auto, config, rows in (
        (hf.AutoModelForCausalLM, hf.LlamaConfig(**size, **words, num_key_value_heads=2), text),
        (hf.AutoModelForCausalLM, hf.MistralConfig(**size, **words, num_key_value_heads=2, sliding_window=4), text),
        (hf.AutoModelForCausalLM, hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64), text),
        (hf.AutoModelForMaskedLM, hf.BertConfig(**size, **words), text),
        (hf.AutoModelForImageClassification, hf.ViTConfig(**size, image_size=16, patch_size=4, num_labels=3), images),
        (hf.AutoModelForSeq2SeqLM, hf.T5Config(**t5, decoder_start_token_id=0), text),
    ):
        yield f"{config.model_type}: three steps of Trainer", partial(train_three_steps, auto, config, rows)


def train_three_steps(auto, config, rows: list) -> None:
    """Every learned radius moves, the loss is finite, and what is saved is loaded."""
    import transformers as hf

    from fourierformer.integrations import hugging_face

    model = auto.from_config(config, attn_implementation="fourier")
    radii = hugging_face.learn_radius(model)
    before = [radius.item() for radius in radii]
    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            folder, max_steps=3, learning_rate=0.01, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = hf.Trainer(model, arguments, train_dataset=rows)
        assert trainer.train().training_loss < float("inf")
        assert all(radius.item() != start for radius, start in zip(radii, before, strict=True))
        trainer.save_model()
        again = auto.from_pretrained(folder, attn_implementation="fourier")
        loaded = hugging_face.load_radius(again, folder)
        assert [radius.item() for radius in loaded] == [radius.item() for radius in radii]

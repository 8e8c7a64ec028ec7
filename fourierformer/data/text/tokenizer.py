"""The tokenizer of an exported language model, in the files of Hugging Face: AutoTokenizer reads them.

Its ids are those of `Corpus.encode`. The id after the vocabulary is padding, on the left (models/lm.py says why).
"""

import json

from fourierformer.data.text import builtin
from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.words import EOS, UNK

PADDING = "<|padding|>"
BLANK = r"\s\x1c-\x1f"  # what Python's `split` takes for a blank; \s lacks the last four


def tokenizer_files(corpus: Corpus, length: int) -> dict[str, dict]:
    """Contents of tokenizer.json and tokenizer_config.json. length: tokens that the model reads at most."""
    if corpus.unit == "bpe":
        parts = json.loads(corpus.tokenizer.to_str())
    else:
        parts = {"version": "1.0"} | (_of_words(corpus) if corpus.unit == "word" else _of_bytes())
    pad = {"id": corpus.vocab_size, "content": PADDING, "special": True, "normalized": False}
    pad |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": length,
        "pad_token": PADDING,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    parts["added_tokens"] = [*parts.get("added_tokens", []), pad]
    return {"tokenizer.json": parts, "tokenizer_config.json": config}


def _of_words(corpus: Corpus) -> dict:
    """One id for each word, and for each line end that of <eos>."""
    ids = {"\n" if word == EOS else word: number for number, word in enumerate(corpus.words)}
    if corpus.manifest["settings"]["source"] == "builtin":
        signs = [word for word in ids if len(word) == 1 and not (word.isalnum() or word.isspace() or word in "_()[]{}")]
        rules = [{"type": "Lowercase"}, _replace("\u2019", "'")]
        rules += [_replace(f"\\x{{{ord(sign):x}}}{{2,}}", f" {sign} ") for sign in signs]  # a repeated sign counts once
        pattern = rf"\n|{builtin.TOKEN.pattern}"
    else:
        rules = [_replace(rf"(?<![^{BLANK}]){EOS}(?![^{BLANK}])", "\n")]
        pattern = rf"\n|[^{BLANK}]+"
    joined = [{"type": "WordPiece", "prefix": " ", "cleanup": False}, {"type": "Fuse"}, _replace(" ?\n ?", "\n")]
    return {
        "normalizer": {"type": "Sequence", "normalizers": rules},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True},
        "decoder": {"type": "Sequence", "decoders": joined},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": UNK},
    }


def _of_bytes() -> dict:
    ids = {f"<0x{byte:02X}>": byte for byte in range(256)}
    return {
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": ids, "merges": [], "byte_fallback": True},
    }


def _replace(pattern: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

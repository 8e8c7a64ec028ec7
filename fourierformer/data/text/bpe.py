"""Byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909) over bytes, by the library `tokenizers`.

Merges are learned from the training text alone, line by line. Every text can be encoded, and decoding gives it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fourierformer.errors import SetupError, short

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = 256  # the first tokens


def require_tokenizers() -> None:
    """SetupError where the library is missing."""
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        install = "pip install -e '.[bpe]' installs it"
        raise SetupError(f"data.unit=bpe needs the package tokenizers ({short(error)}): {install}") from None


def trained(texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of at most `size` tokens for these texts of whole lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((line for text in texts for line in lines(text)), trainer)
    return tokenizer


def of_json(text: str) -> Tokenizer:
    """The tokenizer of a file that `Tokenizer.to_str` wrote."""
    require_tokenizers()
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain exceptions
        raise SetupError(f"the stored tokenizer cannot be read ({short(error)}): restore a copy") from None


def lines(text: str) -> Iterator[str]:
    """The lines of a text with their ends: encoded one by one, they do not depend on how a file is cut into texts."""
    *whole, rest = text.split("\n")
    yield from (line + "\n" for line in whole)
    if rest:
        yield rest


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return [number for line in tokenizer.encode_batch_fast(list(lines(text))) for number in line.ids]


def token_bytes(tokenizer: Tokenizer) -> list[int]:
    """The number of bytes of each token: in the names of tokens one character stands for one byte."""
    return [len(tokenizer.id_to_token(number) or "") for number in range(tokenizer.get_vocab_size())]

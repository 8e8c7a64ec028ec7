"""Documents of the tasks in this folder, from a text file: --metadata '{"text": "FILE"}'."""

from pathlib import Path

from datasets import Dataset

TEXT = "data/wikitext-2/wiki.test.tokens"
LONG = 50  # words of a paragraph whose last one is asked for


def whole(text: str = TEXT, **options) -> dict[str, Dataset]:
    """The file as one document."""
    return {"test": Dataset.from_list([{"text": Path(text).read_text(encoding="utf-8")}])}


def paragraphs(text: str = TEXT, **options) -> dict[str, Dataset]:
    """Its long paragraphs up to their last word, which has letters only: LAMBADA's question, asked of any text."""
    found = []
    for line in Path(text).read_text(encoding="utf-8").split("\n"):
        words = line.split()
        while words and not words[-1].isalpha():
            words.pop()
        if len(words) >= LONG:
            found.append({"context": "\n" + " ".join(words[:-1]), "last": " " + words[-1]})
    return {"test": Dataset.from_list(found)}


def per_word(document: dict, results: list[float]) -> dict[str, tuple[float, int]]:
    """log p of the document and its number of words, where a line end counts as one, as in our own perplexity; that at
    the beginning is given."""
    text = document["text"]
    count = len(text.split()) + text.count("\n") - text.lstrip(" ").startswith("\n")
    return {"word_perplexity": (results[0], count)}

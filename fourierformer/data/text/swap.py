"""Swap words of a text: the attack of papers on attention as kernel regression, as Elliptical attention's code does it.

There TextAttack replaces a share of the words of each line by "AAA", of inputs and targets alike. The rule is the same
here; the draws are our own, from the seed and the line's number alone:

- a word begins with a letter or a digit, which letters, digits and _ ' - * @ may follow: "@-@" is none, "3.5" are two,
  "<unk>" is one, "unk";
- of a line of n words max(int(share * n), 1) are swapped: every heading loses one, so they are more than the share;
- words of NLTK's English list of stop words stay. The list is in lower case, so "The" is none of them;
- the token with "AAA" in the word's place is looked up in the vocabulary, <unk> for an unknown one: "<unk>" becomes
  "<AAA>", so it stays <unk>.

WikiText-103 at a share of 0.015: 3,148 words of the validation text and 3,657 of the test text (1.77 % of its words).
One of the latter stays, in a line that has stop words only.
"""

import random
import re
from functools import cache

import numpy as np

from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.words import EOS, UNK
from fourierformer.errors import SetupError
from fourierformer.seeds import seed_of

NEW_WORD = "AAA"  # a word of WikiText-103's vocabulary
WORD = re.compile(r"[^\W_][\w'*@-]*")
STOP_WORDS = """
i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself yourselves he him his himself
she she's her hers herself it it's its itself they them their theirs themselves what which who whom this that that'll
these those am is are was were be been being have has had having do does did doing a an the and but if or because as
until while of at by for with about against between into through during before after above below to from up down in out
on off over under again further then once here there when where why how all any both each few more most other some such
no nor not only own same so than too very s t can will just don don't should should've now d ll m o re ve y ain aren
aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't haven haven't isn isn't ma mightn mightn't
mustn mustn't needn needn't shan shan't shouldn shouldn't wasn wasn't weren weren't won won't wouldn wouldn't
"""


def swap_words(corpus: Corpus, split: str, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a split with a share of the words of each line swapped, and how many words of each token are: (N,)
    and (N,). Of one seed, a larger share swaps the words of a smaller one too. A share of 0 swaps nothing."""
    original = corpus.splits[split]
    tokens, swapped = np.array(original), np.zeros(len(original), np.int64)
    if share == 0:
        return tokens, swapped
    unknown = unknown_word(corpus)
    words, ids, stop_words = corpus.words, corpus.ids, frozenset(STOP_WORDS.split())

    @cache
    def spans(token: int) -> list[tuple[int, int]]:
        return [] if words[token] == EOS else [match.span() for match in WORD.finditer(words[token])]

    texts: dict[int, str] = {}  # of the tokens so far
    ends = [*np.flatnonzero(original == ids[EOS]), len(original)]
    for line, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        found = [(at, span) for at in range(start, end) for span in spans(int(original[at]))]
        free = [(at, (a, b)) for at, (a, b) in found if words[original[at]][a:b] not in stop_words]
        random.Random(seed_of("word swap", seed, split, line)).shuffle(free)
        # from the last word of a token to its first: the places of those before it stay right
        for at, (a, b) in sorted(free[: max(int(share * len(found)), 1)], reverse=True):
            text = texts.get(at, words[original[at]])
            texts[at] = text[:a] + NEW_WORD + text[b:]
            tokens[at] = ids.get(texts[at], unknown)
            swapped[at] += 1
    return tokens, swapped


def unknown_word(corpus: Corpus) -> int:
    """The token of words that the vocabulary lacks. SetupError where no word can be swapped."""
    if corpus.unit != "word":
        raise SetupError(f"'{corpus.name}' is read as {corpus.unit}s, not as words: no word can be swapped")
    unknown = corpus.ids.get(UNK, corpus.ids.get(NEW_WORD))
    if unknown is None:
        raise SetupError(f"the vocabulary of '{corpus.name}' has neither {NEW_WORD} nor <unk>: no word can be swapped")
    return unknown

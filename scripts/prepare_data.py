"""Tokenise a text data set, or download it, and print its counts.

python scripts/prepare_data.py --list
python scripts/prepare_data.py wikitext103 --root /data/wikitext-103
python scripts/prepare_data.py wikitext103 --download-to data/wikitext-103     # on a machine with internet
"""

import argparse
import resource
import time
from dataclasses import fields
from pathlib import Path

import yaml

from fourierformer.data import hub
from fourierformer.data.text.corpus import TextData, load_corpus
from fourierformer.errors import SetupError, did_you_mean
from fourierformer.printing import echo
from fourierformer.provenance import CONFIGS
from fourierformer.runs.console_io import Parser, exit_on_user_error


def main() -> None:
    options = _parse()
    with exit_on_user_error():
        if options.list:
            echo("\n".join(f"{name:16} {text.splitlines()[0].lstrip('# ')}" for name, text in _configs().items()))
        elif options.download_to:
            hub.download(_read(options), options.download_to, echo)
            echo(f"written: {options.download_to}; copy this folder, then data.root={options.download_to}")
        else:
            _prepare(_read(options))


def _parse() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("name", nargs="?", help="a file name of configs/data")
    parser.add_argument("--root", help="folder with the text files (default: the config's)")
    parser.add_argument("--cache", help="folder for the prepared copies (default: the config's)")
    parser.add_argument("--list", action="store_true", help="list the names of the data sets")
    parser.add_argument("--download-to", type=Path, metavar="DIR", help="only fetch the text from the hub into DIR")
    options = parser.parse_args()
    if not options.name and not options.list:
        parser.error("name a data set, or --list")
    return options


def _configs() -> dict[str, str]:
    """The text of each data config of token data, by name; configs of images have no unit."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((CONFIGS / "data").glob("*.yaml"))}
    return {name: text for name, text in texts.items() if "unit:" in text}


def _read(options: argparse.Namespace) -> TextData:
    configs = _configs()
    if options.name not in configs:
        raise SetupError(f"no text data set is called '{options.name}'{did_you_mean(options.name, configs)}")
    values = yaml.safe_load(configs[options.name])
    unknown = set(values) - {field.name for field in fields(TextData)}
    if unknown:
        raise SetupError(f"configs/data/{options.name}.yaml has unknown keys: {', '.join(sorted(unknown))}")
    if options.root and values.get("source") == "builtin":
        raise SetupError(f"--root would not be read: '{options.name}' is made from installed packages")
    values |= {key: value for key in ("root", "cache") if (value := getattr(options, key)) is not None}
    return TextData(**values)


def _prepare(data: TextData) -> None:
    started = time.perf_counter()
    corpus = load_corpus(data, echo)
    seconds = time.perf_counter() - started
    counts = corpus.manifest["counts"]
    kinds = {"word": "words in the vocabulary", "bpe": "tokens"}
    kind = kinds.get(corpus.unit, f"different {corpus.unit}s")
    echo(f"{data.name}: {corpus.vocab_size:,} {kind}")
    for split, tokens in corpus.splits.items():
        echo(f"  {split:5} {len(tokens):>13,} tokens")
    for note in corpus.notes:
        echo(f"  note: {note}")
    total = sum(counts[split] for split in corpus.splits)
    spent = corpus.manifest["seconds"]
    echo(f"  prepared in {spent:.1f} s ({total / spent / 1e6:.1f} M tokens/s), this call took {seconds:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    echo(f"  peak memory of this process {peak:,.0f} MiB\n  folder {corpus.folder}")


if __name__ == "__main__":
    main()

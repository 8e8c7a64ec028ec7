"""Text from local files (tokens, txt, parquet, one file cut in three), as pieces of bytes per split."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError, one_line
from fourierformer.files import file_sha256

SPLITS = ("train", "valid", "test")
PIECE = 1 << 22  # 4 MiB: large enough to be fast; a piece's word list stays under 100 MB
HEAD = "wiki.train.head.tokens"
LISTED_NOTE = (
    "the vocabulary is dict.txt's, in its order, with <unk> at the rank its count has by the published totals: "
    "ids equal those counted on the whole training text except among words of equal count"
)


@dataclass(frozen=True)
class Input:
    """An input of a prepared copy, such as a file. Equal size and time: unchanged; else the sha256 is compared."""

    name: str
    size: int
    mtime_ns: int
    digest: Callable[[], str]


@dataclass(frozen=True)
class Source:
    """The text of a data set, and the inputs of its fingerprint."""

    inputs: list[Input]
    pieces: Callable[[str], Iterator[bytes]]  # split -> its text
    total: int = 0  # bytes, for the progress report; 0 if unknown
    vocabulary: Path | None = None  # dict.txt, where the training text is incomplete
    notes: list[str] = field(default_factory=list)
    levels: int = 256  # values that a byte of the pieces can have


def local_source(data: TextData) -> Source | None:
    """The text files under data.root, or None if one is missing."""
    root = data.root_path
    single = root if root.is_file() else root / data.name
    if (data.unit == "byte" and single.is_file()) or (data.unit in ("word", "bpe") and root.is_file()):
        return _one_file(data, single)
    if data.byte_splits is not None:
        return None
    for kind in ("tokens", "txt", "parquet"):
        files = {split: _split_files(root, split, kind, data.hub_config) for split in SPLITS}
        if all(files.values()):
            return _files_source(files)
    head, vocabulary = root / HEAD, root / "dict.txt"
    files = {"train": [head], "valid": [root / "wiki.valid.tokens"], "test": [root / "wiki.test.tokens"]}
    if not all(path.is_file() for paths in files.values() for path in paths):
        return None
    notes = (f"the training text is only its beginning ({HEAD}): results are not those of the whole training set",)
    if data.unit == "word" and vocabulary.is_file():
        return _files_source(files, vocabulary, (*notes, LISTED_NOTE))
    return _files_source(files, notes=notes)


def describe_missing(data: TextData) -> str:
    """Part of the message about missing text: the missing files of the root, and the present ones."""
    root = data.root_path
    if not root.exists():
        return f"there is no {root}" + ("" if root.is_absolute() else f" (in {Path.cwd()})")
    if data.unit == "pixel":
        return f"{root} has no images to train on, or none to test on"
    if data.byte_splits is not None:
        return f"{root} has no file '{data.name}'"
    spellings = [[f"wiki.{split}.tokens" for split in SPLITS], [f"{split}.txt" for split in SPLITS]]
    names = max(spellings, key=lambda names: sum((root / name).is_file() for name in names))
    present = [name for name in names if (root / name).is_file()]
    missing = [name for name in names if name not in present]
    found = present or (sorted(path.name for path in root.iterdir()) if root.is_dir() else [])
    shown = f"{', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"
    return f"{root} lacks {', '.join(missing)}" + (f" (it has {shown})" if found else "")


def _files_source(files: dict[str, list[Path]], vocabulary: Path | None = None, notes: tuple[str, ...] = ()) -> Source:
    paths = [path for split in SPLITS for path in files[split]] + ([vocabulary] if vocabulary else [])
    inputs = [_input(path) for path in paths]

    def pieces(split: str) -> Iterator[bytes]:
        for path in files[split]:
            yield from _parquet_pieces(path) if path.suffix == ".parquet" else _file_pieces(path)

    return Source(inputs, pieces, sum(entry.size for entry in inputs), vocabulary, list(notes))


def _split_files(root: Path, split: str, kind: str, hub_config: str | None) -> list[Path]:
    if kind == "parquet":  # train-00000-of-00002.parquet ...; "validation" begins with "valid"
        folders = [root, root / hub_config] if hub_config else [root]
        return next((paths for folder in folders if (paths := sorted(folder.glob(f"{split}*.parquet")))), [])
    path = root / (f"wiki.{split}.tokens" if kind == "tokens" else f"{split}.txt")
    return [path] if path.is_file() else []


def _one_file(data: TextData, path: Path) -> Source:
    """One file cut into train, valid and test by data.byte_splits, by default 90/5/5 per cent of its length, of words
    and byte pairs at the next line end."""
    size = path.stat().st_size
    splits = data.byte_splits or [size - 2 * (size // 20), size // 20, size // 20]
    if sum(splits) != size:
        raise SetupError(
            f"{path} has {size:,} bytes, but data.byte_splits {splits} need {sum(splits):,}: the file is incomplete or "
            "another one (data.byte_splits=null data.expect=null cuts any file 90/5/5)"
        )
    cuts = [0, splits[0], splits[0] + splits[1], size]
    if data.unit != "byte":
        cuts[1:3] = [_line_end(path, cut) for cut in cuts[1:3]]
    parts = {split: (start, end - start) for split, start, end in zip(SPLITS, cuts, cuts[1:], strict=False)}
    return Source([_input(path)], lambda split: _file_pieces(path, *parts[split]), size)


def _line_end(path: Path, position: int) -> int:
    with open(path, "rb") as file:
        file.seek(position)
        file.readline()
        return file.tell()


def _input(path: Path) -> Input:
    status = path.stat()
    return Input(path.name, status.st_size, status.st_mtime_ns, lambda: file_sha256(path))


def _file_pieces(path: Path, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    left = path.stat().st_size if length is None else length
    with open(path, "rb") as file:
        file.seek(start)
        while left > 0 and (piece := file.read(min(PIECE, left))):
            left -= len(piece)
            yield piece


def _parquet_pieces(path: Path) -> Iterator[bytes]:
    """The rows of a parquet file as lines, blank rows included, as the hub stores WikiText."""
    import datasets

    # streaming: nothing is copied into the user's datasets cache
    try:
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for batch in rows.iter(batch_size=10_000):
            if "text" not in batch:
                raise SetupError(f"{path} has no column 'text' (it has: {', '.join(batch)})")
            yield rows_to_bytes(batch["text"], str(path))
    except SetupError:
        raise
    except Exception as error:  # datasets and Arrow raise many kinds of errors
        reason = f"{type(error).__name__}: {one_line(error)[:200]}"
        raise SetupError(f"{path} cannot be read as parquet ({reason})") from error


def rows_to_bytes(rows: list, origin: str) -> bytes:
    for row in rows:
        if not isinstance(row, str):
            raise SetupError(f"{origin}: a row of column 'text' is {row!r:.60}, not text")
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows).encode()

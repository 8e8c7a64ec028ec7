"""The location of a data set: its files, the hub, or the built-in data, and the cache for prepared copies."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fourierformer.errors import SetupError, check_name, check_path

Say = Callable[[str], None]  # prints a line


@dataclass(frozen=True, kw_only=True)
class DataLocation:
    """The keys that all of `configs/data/<name>.yaml` have, of text and of images."""

    name: str
    source: Literal["files", "builtin"] = "files"
    root: str | None = None  # folder with the files, of text or images; for bytes it may be one text file
    cache: str = "data/prepared"  # tokenised text, indexes of tar files, unpacked parquet; the root is only read
    hub: str | None = None  # name of the data in `datasets`, for a root without files
    hub_config: str | None = None

    def __post_init__(self):
        if self.source not in ("files", "builtin"):
            raise SetupError(f"data.source={self.source} is unknown (valid: files, builtin)")
        check_name("data.name", self.name)
        check_path("data.root", self.root)
        check_path("data.cache", self.cache)
        if self.source == "files" and not self.root:
            raise SetupError(f"data '{self.name}' needs a folder with its files: data.root=/some/folder")

    @property
    def without_effect(self) -> str | None:
        """Why a value has no effect beside the others, with a way out."""
        if self.source == "files" or not self.root:
            return None
        return (
            f"data.root={self.root} would not be read: data={self.name} is generated from installed packages. "
            "Choose the data set in that folder (data=wikitext2, data=cifar10, ...), or leave data.root out"
        )

    @property
    def root_path(self) -> Path:
        return Path(self.root or ".").expanduser()

    @property
    def cache_path(self) -> Path:
        return Path(self.cache).expanduser()


@contextlib.contextmanager
def disk_errors(data: DataLocation) -> Iterator[None]:
    """A context that turns errors of the disk into a SetupError with a way out."""
    try:
        yield
    except OSError as error:
        cache, way_out = str(data.cache_path.absolute()), ". Choose another folder: data.cache=/some/folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk under {cache} is full (nothing half-written was left behind){way_out}"
        elif error.filename and not str(Path(error.filename).absolute()).startswith(cache):
            reason = f"cannot read {error.filename}: {error.strerror}"
        else:
            reason = f"cannot use {error.filename or cache}: {error.strerror or error}{way_out}"
        raise SetupError(f"Data '{data.name}': {reason}") from error

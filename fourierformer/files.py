"""Writing files that are never half-written, and reading JSON."""

import json
import os
from pathlib import Path

from fourierformer.errors import UserError


def atomic_write_text(path: Path, text: str) -> None:
    """Replaces the file by `text` at once: readers, and a process that dies, leave either the old text or the new."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict | None:
    """The content of a JSON file; None when there is no such file, UserError when it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): restore it from a copy, or delete it.") from error

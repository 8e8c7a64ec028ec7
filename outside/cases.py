"""A suite, its cases and what comes of them."""

import importlib.util
import re
import subprocess
import sys
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fourierformer.errors import first_line
from fourierformer.printing import echo

Case = tuple[str, Callable[[], object]]  # its name, and a call that raises where it fails


class Skipped(Exception):
    """The reason why a case says nothing about this package."""


@dataclass(frozen=True)
class Suite:
    name: str
    proves: str
    cases: Callable[[Path], Iterator[Case]]
    folder: str = ""  # inside --suites; "": a library that is installed
    library: str = ""  # whose version is stated


def load(path: Path, name: str = "") -> Any:
    """The module in a file, which need not lie in a package."""
    if not path.is_file():
        raise Skipped(f"{path.name} is not in this copy")
    spec = importlib.util.spec_from_file_location(name or f"outside_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def skip(reason: str) -> None:
    raise Skipped(reason)


def outcome(call: Callable[[], object]) -> tuple[str, str]:
    """("passed", ""), or "skipped" or "failed" with the reason."""
    try:
        call()
    except (Skipped, unittest.SkipTest) as error:
        return "skipped", first_line(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if type(error).__name__ == "Skipped":  # of pytest
            return "skipped", first_line(error)
        return "failed", f"{type(error).__name__}: {first_line(error)}"
    return "passed", ""


def version_of(suite: Suite, folder: Path) -> str:
    """The version of a library ("" where it is not installed) or of a source archive; the commit of a checkout."""
    if suite.library:
        try:
            return version(suite.library)
        except PackageNotFoundError:
            return ""
    archive = folder / "PKG-INFO"
    if archive.is_file():
        return re.findall(r"^Version: (.*)$", archive.read_text(encoding="utf-8"), flags=re.M)[0]
    command = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def row(suite: Suite, root: Path | None, verbose: bool) -> dict[str, str]:
    folder = (root or Path()) / suite.folder
    facts = {"suite": suite.name, "shows": suite.proves, "version": "", "run": "0", "passed": "0", "failed": "0"}
    if suite.folder and (root is None or not folder.is_dir()):
        return facts | {"skipped": "0", "reasons": f"no folder {suite.folder} in --suites"}
    counts, reasons = Counter[str](), Counter[str]()
    try:
        for name, call in suite.cases(folder):
            result, reason = outcome(call)
            counts[result] += 1
            if result == "skipped":
                reasons[reason] += 1
            if result == "failed" or verbose:
                echo(f"{suite.name}: {name}: {result} {reason}")
    except (ImportError, Skipped) as error:
        reasons[f"cannot run: {first_line(error)}"] += 1
    texts = [f"{reason} ({count})" for reason, count in reasons.most_common(8)]
    if len(reasons) > 8:
        texts.append(f"{len(reasons) - 8} other reasons ({sum(count for _, count in reasons.most_common()[8:])})")
    numbers = {name: str(counts[name]) for name in ("passed", "failed", "skipped")}
    run = str(counts["passed"] + counts["failed"])
    return facts | {"version": version_of(suite, folder), "run": run} | numbers | {"reasons": "; ".join(texts)}

"""Hooks of MkDocs (mkdocs.yml): README becomes the first page, and what a page links to outside docs/ joins the site.

On GitHub a document links to `../configs/data/wikitext2.yaml`; a site only has what lies in docs/. So every linked file
of the repository is added under its own path, and the links are written anew.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")  # the target of [text](target#anchor)


def on_files(files, config):
    """README.md, and then whatever the pages link to, and the pages among that link to."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for target in LINK.findall(Path(page.abs_src_path).read_text(encoding="utf-8")):
            path = _path(target, page)
            if path.is_file() and files.get_file_from_path(_uri(path)) is None:
                file = File.generated(config, _uri(path), abs_src_path=str(path))
                files.append(file)
                waiting += [file] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown, page, config, files):
    markdown = re.sub(r"^<!-- (::: [\w.]+) -->$", r"\1", markdown, flags=re.M)  # unseen on GitHub, here the reference
    markdown = markdown.replace("<details>", '<details markdown="1">')  # or the tables inside stay as typed
    markdown = re.sub(r"^```(\w+) (\S+)$", r'```\1 title="\2"', markdown, flags=re.M)  # a block that is a file
    here = os.path.dirname(page.file.src_uri) or "."
    return LINK.sub(lambda found: os.path.relpath(_uri(_path(found[1], page.file)), here), markdown)


def _path(target: str, file: File) -> Path:
    return Path(os.path.normpath(Path(file.abs_src_path).parent / target))


def _uri(path: Path) -> str:
    """Where a file of the repository lies in the site's sources."""
    if path == ROOT / "README.md":
        return "index.md"
    return path.relative_to(ROOT / "docs" if path.is_relative_to(ROOT / "docs") else ROOT).as_posix()

"""Running the repository's scripts on harmed runs, and judging whether a command reached further than it may."""

import re
from pathlib import Path

from faults.children import Ended, executed, in_child
from faults.trials import ACCEPTED, LEAKED, OUTSIDE, REFUSED, Verdict, crashed

SECRET = "hf_" + 5 * "a1b2"  # in the environment, and in no file: not as a word, which a diff of this file would have
ESCAPES = "\x1b]0;renamed\x07\x1b[2J\u202e"
SCRIPTS = {
    "evaluate": ("{run}", "--device", "cpu", "--limit", "100"),
    "export": ("{run}", "--to", "{out}/model"),
    "generate": ("{run}", "--device", "cpu", "--tokens", "3"),
    "head_redundancy": ("{run}", "--sequences", "2"),
    "make_tables": ("{run}",),
    "report": ("{run}",),
    "robustness": ("{run}", "--limit", "100", "--levels", "0.1", "--out", "{out}/robustness"),
    "show_attention": ("{run}", "--sequences", "2"),
    "sweep_status": ("{run}",),
}


def ended_by(folder: Path, script: str, run: Path) -> Ended:
    words = [word.format(run=run, out=folder / "out") for word in SCRIPTS[script]]
    return in_child(lambda: executed(f"scripts/{script}", *words), folder=folder)


def make_outside(folder: Path) -> Path:
    """Files that no command has to do with."""
    outside = folder / "outside"
    (outside / "folder").mkdir(parents=True)
    for path in (outside / "file", outside / "folder" / "file"):
        path.write_text("of somebody else\n")
    return outside


def judged(ended: Ended, folder: Path, outside: Path) -> Verdict | None:
    """The verdict on a command that crashed, changed a file outside, or showed a secret or a control character."""
    if bad := crashed(ended):
        return bad
    found = sorted(str(path.relative_to(outside)) for path in outside.rglob("*"))
    contents = {path.read_text() for path in outside.rglob("*") if path.is_file()}
    if found != ["file", "folder", "folder/file"] or contents != {"of somebody else\n"}:
        return Verdict(OUTSIDE, f"{found}, {contents}\n{ended.text[-3000:]}")
    if re.search("[\x07\x1b\u202e]", ended.text):
        return Verdict(LEAKED, f"a control character: {ended.text[-3000:]!a}")
    files = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 2**24)
    if SECRET in ended.text or (named := [path for path in files if SECRET.encode() in path.read_bytes()]):
        return Verdict(LEAKED, f"a secret, in {named if SECRET not in ended.text else 'the output'}")
    return None


def judged_end(ended: Ended, folder: Path, outside: Path, what: str) -> Verdict:
    """As `judged`; a command that did none of that refused what it was given, or accepted it. `what`: the fault."""
    if bad := judged(ended, folder, outside):
        return Verdict(bad.kind, f"{what}\n{bad.evidence}")
    return Verdict(REFUSED) if ended.code else Verdict(ACCEPTED)

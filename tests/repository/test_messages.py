"""messages.txt, beside this test, lists every message that a user can meet, so that a person can read them all.

After a change of a message: python tests/repository/test_messages.py
"""

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SNAPSHOT = HERE / "messages.txt"
ERRORS = {"SetupError", "UserError", "Diverged", "ValueError", "TypeError", "NotImplementedError", "RuntimeError"}
OUTPUT = {"print", "say", "print_error", "warn"}  # functions that show their argument to the user


def text_of(node: ast.expr) -> str | None:
    """A message as it is in the source, with {expressions} for values; None for an expression that is not text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values
        ]
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [text_of(side) or f"{{{ast.unparse(side)}}}" for side in (node.left, node.right)]
        return "".join(sides) if any(text_of(side) for side in (node.left, node.right)) else None
    return None


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def messages(path: Path) -> list[str]:
    texts: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and name_of(node) in ERRORS | OUTPUT:
            texts += [text for text in map(text_of, node.args[:1]) if text and len(text.split()) > 2]
    return sorted({" ".join(text.split()) for text in texts})


def listing() -> str:
    """The messages of all files, in the order of the tree."""
    folders = ("fourierformer", "scripts", "benchmarks")
    files = [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    parts = [(path.relative_to(REPOSITORY), messages(path)) for path in files]
    return "\n".join("\n".join([f"{path}", *(f"    {line}" for line in lines), ""]) for path, lines in parts if lines)


def test_the_listing_is_of_these_sources():
    assert SNAPSHOT.read_text() == listing(), (
        f"read the changed messages, then run: python {Path(__file__).relative_to(REPOSITORY)}"
    )


def test_messages_are_sentences_for_a_reader():
    """No doubled blanks or stops, no shouting, no apology."""
    for line in SNAPSHOT.read_text().splitlines():
        assert ".." not in line.replace("...", "").replace("../", ""), line
        assert not any(word in line.lower() for word in ("sorry", "please", "oops", "invalid argument")), line


if __name__ == "__main__":
    SNAPSHOT.write_text(listing())
    sys.exit(print(f"{SNAPSHOT.relative_to(REPOSITORY)}: {len(listing().splitlines())} lines"))

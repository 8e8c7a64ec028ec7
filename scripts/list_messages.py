"""Print every message that a user can meet, by file."""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ERRORS = {"SetupError", "UserError", "Diverged", "ValueError", "TypeError", "NotImplementedError", "RuntimeError"}
OUTPUT = {"print", "echo", "say", "print_error", "warn"}  # functions that show their argument to the user


def text_of(node: ast.expr) -> str | None:
    """A message as in the source, with {expressions} for values; None for an expression that is not text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = node.values
        return "".join(p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in parts)
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


if __name__ == "__main__":
    print(listing())

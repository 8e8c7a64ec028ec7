"""A task owns its facts: no other file has the name of a task, of its script or of its built-in data sets."""

import ast
import re

from tests.helpers.command_line import REPOSITORY

FACTS = re.compile(r"^(language|vision|masked|seq2seq|recall|regression)$|lm\|vit|builtin_")
# tasks and data own them; in attention "masked" is the name of a backend
OWNERS = ("tasks", "data", "attention")
FILES = [
    path
    for path in sorted((REPOSITORY / "fourierformer").rglob("*.py"))
    if path.relative_to(REPOSITORY / "fourierformer").parts[0] not in OWNERS
]


def texts(tree: ast.Module) -> list[str]:
    """The text constants of a file, without docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and has_text(node)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return [node.value for node in constants if isinstance(node.value, str)]


def has_text(node) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr)


def test_no_other_file_names_a_task():
    found = {
        str(path.relative_to(REPOSITORY)): [text for text in texts(ast.parse(path.read_text())) if FACTS.search(text)]
        for path in FILES
    }
    assert {path: words for path, words in found.items() if words} == {}

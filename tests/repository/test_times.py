"""No test asserts a time, or a ratio of times: a busy machine would break it."""

import ast

import pytest

from tests.helpers.command_line import REPOSITORY

TIMES = {"time", "seconds", "milliseconds", "ms", "elapsed", "duration", "took"}
CLOCKS = {"perf_counter", "monotonic", "process_time", "thread_time"}
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def is_time(side: ast.expr) -> bool:
    """Whether an expression is a time by its name, as in `seconds`, `row["time x softmax"]`, `perf_counter() - t`."""
    if isinstance(side, ast.Call) and getattr(side.func, "id", "") == "float":
        side = side.args[0]
    if isinstance(side, ast.Subscript):
        side = side.slice
    name = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}.get(type(side), "")
    words = str(getattr(side, name, "")).replace("_", " ").split()
    clocks = (part for part in ast.walk(side) if isinstance(part, ast.Call))
    return bool(TIMES & set(words)) or any(
        {getattr(call.func, "attr", ""), getattr(call.func, "id", "")} & CLOCKS for call in clocks
    )


def asserted_times(source: str) -> list[int]:
    """The lines of assertions that a time is more or less than something other than 0."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        for part in ast.walk(node) if isinstance(node, ast.Assert) else ():
            if isinstance(part, ast.Compare) and any(isinstance(operator, ORDER) for operator in part.ops):
                sides = [part.left, *part.comparators]
                positive = any(isinstance(side, ast.Constant) and side.value == 0 for side in sides)
                if any(map(is_time, sides)) and not positive:
                    lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("assertion", "found"),
    [
        ("assert seconds < 3", True),
        ("assert float(row['time x softmax']) > 1", True),
        ("assert done.step_ms <= 2 * other", True),
        ("assert time.perf_counter() - started < limit", True),
        ("assert float(row['ms']) > 0 and row['seconds'] == 3", False),
        ("assert {'ms', 'MiB'} < set(row)", False),
        ("assert steps < 3", False),
    ],
)
def test_the_search_finds_times(assertion, found):
    assert bool(asserted_times(assertion)) is found


def test_no_test_asserts_a_time():
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path in sorted((REPOSITORY / "tests").rglob("test_*.py"))
        for line in asserted_times(path.read_text())
    ]
    assert not found, f"assert what does not depend on the machine, in place of: {', '.join(found)}"

"""Which part may import which, read from the sources: only parts before it; a heavy library belongs to one part."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.command_line import REPOSITORY

PACKAGE = REPOSITORY / "fourierformer"
FILES = sorted(PACKAGE.rglob("*.py"))
# Left to right as the data flows; a part may import the parts before it, and itself. Single files that come before the
# rest of their part are named.
ORDER = (
    *("errors", "printing", "files", "network", "seeds", "provenance", "checking", "processes", "transfer", "marks"),
    *("training/config", "config"),
    *("data", "kernels", "attention", "models", "tracking", "training", "tasks", "tracking/console"),
    *("runs/cpu", "runs/directory", "runs/spec", "runs/state", "runs/parts"),
    *("analysis", "results", "report", "runs", "integrations", "__main__"),
)
ONLY = {
    "hydra": {"runs/launch", "runs/hydra_errors", "runs/sweep", "runs/job_names"},
    "omegaconf": {"checking", "config", "runs"},
    "triton": {"kernels"},
    "wandb": {"tracking/wandb"},
    "datasets": {"data", "integrations"},
    "transformers": {"integrations"},
    "timm": {"models/vit", "integrations", "data/images/corpus", "tasks/classification_objective"},
    "scipy": {"results/statistics"},
    "sklearn": {"data/images/digits"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "tokenizers": {"data/text/bpe", "data/text/corpus"},
    "sacrebleu": {"tasks/seq2seq_objective"},
    "rich": {"tracking/console", "results/formats"},
}
HEAVY = ("hydra", "wandb", "datasets", "matplotlib", "jinja2", "rich", "timm", "pandas")


def part_of(path: Path) -> str:
    """'data/text' for fourierformer/data/text/corpus.py, 'data' for fourierformer/data/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(part for part in parts if part != "__init__")


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_a_heavy_library_is_imported_by_its_part_only():
    for path in FILES:
        used = {name.split(".")[0] for name in imports(path)}
        for library in used & set(ONLY):
            allowed = ONLY[library]
            assert part_of(path) in allowed or part_of(path).split("/")[0] in allowed, f"{path} imports {library}"


def rank(name: str) -> int:
    """The index in ORDER of a file, or of the part that it belongs to."""
    part = name.split("/")[0]
    known = next((entry for entry in ("/".join(name.split("/")[:2]), part) if entry in ORDER), None)
    assert known, f"add {part} to ORDER"
    return ORDER.index(known)


@pytest.mark.parametrize("part", sorted({part_of(f).split("/")[0] for f in FILES} - {""}))
def test_imports_follow_the_order(part):
    for path in (f for f in FILES if part_of(f).split("/")[0] == part):
        for name in imports(path):
            package, _, rest = name.partition(".")
            imported = PACKAGE / rest.split(".")[0]
            if package == "fourierformer" and (imported.is_dir() or imported.with_suffix(".py").is_file()):
                assert rank(rest.replace(".", "/")) <= rank(part_of(path)), f"{path} imports {name}, which comes after"


@pytest.mark.parametrize("part", ["runs", "tasks"])
def test_files_of_a_part_import_each_other_without_a_circle(part):
    """Inside functions too. Files that import only files that were taken out are taken out, until none is left."""
    files = {part_of(path): imports(path) for path in FILES if part_of(path).split("/")[0] == part}

    def file_of(name: str) -> str | None:
        dotted = {other: f"fourierformer.{other.replace('/', '.')}." for other in files}
        return max((other for other in files if f"{name}.".startswith(dotted[other])), key=len, default=None)

    left = {name: {file_of(imported) for imported in used} - {None, name} for name, used in files.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}


def test_the_package_is_light():
    """Attention and kernels run where neither trackers nor data sets nor Hydra are installed; building one mechanism
    imports no other."""
    code = (
        "import sys, fourierformer; early = [name for name in ('torch', 'omegaconf') if name in sys.modules];"
        "from fourierformer.attention import Geometry, build;"
        "build('softmax', Geometry(dim=8, heads=2, length=4, causal=True));"
        "print(sorted(name.rpartition('.')[2] for name in sys.modules if '.mechanisms.' in name));"
        "fourierformer.available_attentions(); fourierformer.FourierAttention(8, 2);"
        f"print(early + [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['softmax']", "[]"]


def test_the_package_needs_no_tool_of_the_repository():
    """They are not installed with the package."""
    tools = {"benchmarks", "faults", "outside", "scripts", "tests"}
    for path in FILES:
        assert not {name.split(".")[0] for name in imports(path)} & tools, path


@pytest.mark.full("imports torch and timm in a process of its own")
def test_training_needs_neither_hydra_nor_omegaconf():
    """Both belong to the command line: a loop of one's own trains without them."""
    absent = "dict.fromkeys(('hydra', 'omegaconf', 'wandb', 'datasets'))"
    modules = ("training.loop", "tasks.language_objective", "tasks.classification_objective", "models.lm", "models.vit")
    code = f"import sys; sys.modules |= {absent}; import {', '.join(f'fourierformer.{name}' for name in modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)

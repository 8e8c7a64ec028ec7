"""Who may import what, read from the sources: parts know only parts left of them, heavy libraries stay in one room."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import REPOSITORY

PACKAGE = REPOSITORY / "fourierformer"
FILES = sorted(PACKAGE.rglob("*.py"))
# Left to right as the data flows; a part may import what stands before it, and itself. Single files that stand before
# the rest of their part are named.
ORDER = (
    *("errors", "files", "seeds", "provenance", "training/config", "config", "training/processes"),
    *("data", "kernels", "attention", "models", "tasks", "tracking", "training"),
    *("runs/cpu", "runs/directory", "runs/spec", "runs/parts"),
    *("analysis", "results", "plots", "report", "runs", "integrations"),
)
ONLY = {
    "hydra": {"runs/launch", "runs/sweep"},
    "omegaconf": {"config", "runs/launch", "runs/run", "runs/spec"},
    "triton": {"kernels"},
    "wandb": {"tracking/wandb"},
    "datasets": {"data"},
    "timm": {"models/vit", "integrations", "data/images/corpus", "tasks/classification_objective"},
    "scipy": {"results/statistics", "analysis/estimators", "analysis/radius"},
    "sklearn": {"data/images/sets", "analysis/estimators"},
    "matplotlib": {"plots"},
    "jinja2": {"report"},
    "rich": {"tracking/console", "results/formats"},
}
HEAVY = ("hydra", "wandb", "datasets", "matplotlib", "jinja2", "rich", "timm", "pandas")


def place(path: Path) -> str:
    """'data/text' for fourierformer/data/text/corpus.py, 'data' for fourierformer/data/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(part for part in parts if part != "__init__")


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=place)
def test_libraries_stay_in_their_room(path):
    used = {name.split(".")[0] for name in imports(path)}
    for library in used & set(ONLY):
        allowed = ONLY[library]
        assert place(path) in allowed or place(path).split("/")[0] in allowed, f"{path} imports {library}"


def rank(place: str) -> int:
    """Where a file, or the part it belongs to, stands in ORDER."""
    part = place.split("/")[0]
    known = next((name for name in ("/".join(place.split("/")[:2]), part) if name in ORDER), None)
    assert known, f"give {part} a place in ORDER"
    return ORDER.index(known)


@pytest.mark.parametrize("path", [f for f in FILES if place(f)], ids=place)
def test_imports_point_left(path):
    for name in imports(path):
        package, _, rest = name.partition(".")
        part = PACKAGE / rest.split(".")[0]
        if package == "fourierformer" and (part.is_dir() or part.with_suffix(".py").is_file()):
            assert rank(rest.replace(".", "/")) <= rank(place(path)), f"{path} imports {name}, which stands right of it"


def test_the_package_is_light():
    """Attention and kernels run where neither trackers nor data sets nor Hydra are installed."""
    code = (
        "import sys, fourierformer; fourierformer.available_attentions(); fourierformer.fourier_attention;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_the_package_needs_neither_scripts_nor_benchmarks(path):
    """They are no part of what is installed."""
    assert not {name.split(".")[0] for name in imports(path)} & {"benchmarks", "scripts", "tests"}


def test_training_needs_neither_hydra_nor_omegaconf():
    """Both belong to the command line; benchmarks/recipes.py trains without."""
    absent = "dict.fromkeys(('hydra', 'omegaconf', 'wandb', 'datasets'))"
    modules = ("training.loop", "tasks.language_objective", "tasks.classification_objective", "models.lm", "models.vit")
    code = f"import sys; sys.modules |= {absent}; import {', '.join(f'fourierformer.{name}' for name in modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)

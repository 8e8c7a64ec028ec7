"""README and docs/ say nothing that the code does not do: commands compose, scripts and options exist, links lead
somewhere, code runs."""

import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import fourierformer
from fourierformer import attention
from fourierformer.data.text.spec import TextData
from fourierformer.results.documents import public_names
from fourierformer.runs.spec import task_of
from tests.helpers.command_line import REPOSITORY, one_job, spec_of

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
KERNELS = [REPOSITORY / "fourierformer/kernels" / name for name in ("TRIED.md", "sinc/README.md")]
LINKED = [*PAGES, *KERNELS, *(REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))]
TEXT = {page.relative_to(REPOSITORY).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
# for files that a reader is to write: files that exist
STAND_INS = {"data=mine": "data=wikitext2", "attention=mine": "attention=softmax"}


def blocks(text: str, *languages: str) -> list[str]:
    """Blocks of code in these languages, without those that are files (```python some/file.py)."""
    fenced = re.findall(r"^```(.*?)\n(.*?)^```$", text, flags=re.S | re.M)
    return [block for language, block in fenced if language in languages]


def shell_lines(text: str) -> list[str]:
    """The commands in blocks without a language, and in backticks."""
    lines = "\n".join(blocks(text, "", "bash")).replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    inline = re.findall(r"`((?:python|torchrun|make) [^`]+)`", prose)
    return [line.split(" #")[0].strip() for line in (*lines, *inline)]


COMMANDS = [(name, line) for name, text in TEXT.items() for line in shell_lines(text)]
TRAINING = sorted({(name, line) for name, line in COMMANDS if re.search(r"train_(lm|vit)\.py", line)})
PROGRAM = r"python (?:scripts/\w+\.py|-m (?:benchmarks\.\w+|faults\b|outside\b))"
PROGRAMS = sorted({program for _, line in COMMANDS for program in re.findall(PROGRAM, line)})


@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(page, line, marks=() if page == "README.md" else pytest.mark.full("a composition for each line"))
        for page, line in TRAINING
    ],
)
def test_training_commands_compose_into_valid_configs(page, line):
    script, rest = re.search(r"(train_(?:lm|vit))\.py(.*)", line).groups()
    if rest.count("'") % 2:  # the end of a command inside another one's quotes
        rest = rest.rstrip("'")
    words = shlex.split(rest)
    if {"--help", "--cfg"} & set(words):  # options of Hydra, which composes no config then
        return
    arguments = one_job([STAND_INS.get(word, word) for word in words])
    assert task_of(spec_of(*arguments, script=script)).script == f"{script}.py"


def test_there_are_training_commands():
    assert sum("train_lm.py" in line for _, line in TRAINING) > 15
    assert sum("train_vit.py" in line for _, line in TRAINING) > 4
    assert sum(page == "README.md" for page, _ in TRAINING) > 8


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests import some of them
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_named_there_exist_and_have_the_options_named_there(program, monkeypatch, capsys):
    *module, name = program.split()[1:]
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.syspath_prepend("scripts")
    with pytest.raises(SystemExit, match="0"):
        (runpy.run_module if module else runpy.run_path)(name, run_name="__main__")
    printed = capsys.readouterr().out
    assert "usage:" in printed
    for page, line in COMMANDS:
        if re.search(f"{re.escape(program)}\\b", line):
            unknown = {word for word in shlex.split(line) if word.startswith("--") and word not in printed}
            assert not unknown, f"{page}: {line}"


def test_make_targets_named_there_exist():
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.M))
    named = {target for _, line in COMMANDS for target in re.findall(r"^make ([a-z-]+)", line)}
    assert {"train", "test", "docs", "docs-site", "report"} <= named <= targets


def slugs(text: str) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page.name}: {link}"
        assert target.is_relative_to(REPOSITORY), f"{page.name}: {link}"
        assert not anchor or anchor in slugs(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def test_pages_named_in_the_sources_exist():
    folders = ("fourierformer", "scripts", "benchmarks")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    named = {page for path in files for page in re.findall(r"\bdocs/\w+\.md", path.read_text(encoding="utf-8"))}
    assert "docs/library.md" in named
    assert named <= set(TEXT)


def run_all(files: list[Path]) -> None:
    for file in files:
        runpy.run_path(str(file))


def test_python_code_of_the_readme_runs(tmp_path):
    """Each block alone, in a fork, since one registers an attention: importing torch and timm anew takes 9 seconds."""
    files = [tmp_path / f"{number}.py" for number in range(len(blocks(TEXT["README.md"], "python")))]
    for file, block in zip(files, blocks(TEXT["README.md"], "python"), strict=True):
        file.write_text(block)
    process = multiprocessing.get_context("fork").Process(target=run_all, args=(files,))
    process.start()
    process.join(timeout=200)
    assert files
    assert process.exitcode == 0


@pytest.mark.full("a process that imports torch")
@pytest.mark.parametrize(  # that of library.md needs a run: tests/cli/test_public_examples.py
    "page", [name for name, text in TEXT.items() if blocks(text, "python") and name != "docs/library.md"]
)
def test_python_code_runs(page, tmp_path):
    """Each block alone, all of a page in one process of their own, since some register an attention."""
    for number, block in enumerate(blocks(TEXT[page], "python")):
        (tmp_path / f"{number}.py").write_text(block)
    run = "import pathlib, runpy; [runpy.run_path(str(path)) for path in sorted(pathlib.Path().glob('*.py'))]"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_a_data_set_as_it_is_described_is_valid():
    (block,) = blocks(TEXT["docs/extend.md"], "yaml")
    assert TextData(**yaml.safe_load(block)).name == "mine"


def test_every_page_can_be_found():
    """In README's table and in the site's menu."""
    pages = {Path(name).name for name in TEXT if name.startswith("docs/")}
    assert set(re.findall(r"\]\(docs/(\w+\.md)\)", TEXT["README.md"])) == pages
    menu = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    assert set(re.findall(r"\w+\.md", str(menu))) == pages | {"index.md"}


def test_every_public_function_is_in_the_reference():
    names = public_names(TEXT["docs/reference.md"])
    assert {f"fourierformer.{name}" for name in fourierformer.__all__} <= set(names)
    assert len(names) == len(set(names))


def test_attentions_named_there_exist():
    text = TEXT["docs/attention.md"]
    chosen = text.split("## Which one to choose")[1].split("## Time")[0]
    cells = re.findall(r"^\|[^|]*\|([^|]*)\|", chosen, flags=re.M)  # of the second column
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert len(named) > 10
    assert named <= set(attention.available())


@pytest.mark.parametrize(("experiment", "count"), [("wt103_small", "44.0M"), ("wt103_medium", "89.8M")])
def test_experiments_named_there_have_the_numbers_it_gives(experiment, count):
    lines = TEXT["docs/reproduce.md"].splitlines()
    row = next(line for line in lines if line.startswith(f"| `experiment={experiment}`"))
    spec = spec_of(f"experiment={experiment}")
    batch, length, steps = spec.global_batch_size, spec.model.length, spec.trainer.steps
    assert f"{batch} x {length} tokens, {steps:,} steps" in row
    assert count in row


def test_data_sets_named_there_have_a_config():
    table = TEXT["docs/reproduce.md"].split("## Data")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, flags=re.M)))) - {"data"}
    assert named == {path.stem for path in (REPOSITORY / "configs/data").glob("*.yaml")}


def test_configs_are_yaml_with_a_comment_on_top():
    for path in (REPOSITORY / "configs").rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#"), f"{path.name} does not say what it is"
        assert isinstance(yaml.safe_load(text), dict), path.name


@pytest.mark.full("builds the whole site")
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="MkDocs is not installed (make docs-site installs it)")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed (make docs-site installs it)")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference/index.html").read_text(encoding="utf-8")
    assert 'id="fourierformer.fourier_attention"' in page

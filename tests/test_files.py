"""Files are written in one way: created anew under a name that nobody can have planted, then renamed."""

import ast
import os

import pytest
from matplotlib.figure import Figure

from fourierformer.data.text.prepared import cache_lock
from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError
from fourierformer.files import atomic_write_text, own_folder, unused_name
from fourierformer.report.page import save_figures
from fourierformer.report.picture import Picture
from fourierformer.report.section import Charts, Section
from fourierformer.runs.directory import RunDirectory
from tests.helpers.command_line import REPOSITORY

# files that open their own for writing: the one function itself, and folders that were made a moment before by mkdtemp
# or mkdir, the record of a run that only open_own opens, devices, and files of the repository
WRITERS = {
    "fourierformer/files.py",
    "fourierformer/data/text/prepared.py",  # a lock, with open_own
    "fourierformer/data/text/prepare.py",
    "fourierformer/kernels/sinc/library.py",
    "fourierformer/runs/console_io.py",
    "fourierformer/runs/directory.py",  # a probe, at an unused name
    "fourierformer/runs/measure.py",
    "fourierformer/tracking/jsonl.py",
    "fourierformer/training/state_file.py",
    "scripts/new_attention.py",
}


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "elsewhere" / "victim"
    path.parent.mkdir()
    path.write_text("four hundred pages")
    yield path
    assert path.read_text() == "four hundred pages"
    assert [child.name for child in path.parent.iterdir()] == ["victim"]


def test_a_link_planted_at_the_name_of_a_temporary_file_is_not_followed(tmp_path, victim):
    os.symlink(victim, tmp_path / f".report.html.{os.getpid()}.tmp")
    os.symlink(victim.parent / "new", tmp_path / f".writable.{os.getpid()}")
    atomic_write_text(tmp_path / "report.html", "<html>")
    RunDirectory(tmp_path).create()
    assert (tmp_path / "report.html").read_text() == "<html>"
    assert len({unused_name(tmp_path / "report.html") for _ in range(100)}) == 100


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path, victim):
    for name in ("report.html", "curve.svg", "curve.png"):
        os.symlink(victim, tmp_path / name)
    atomic_write_text(tmp_path / "report.html", "<html>")
    Picture(Figure(), "curve", "a curve", []).save(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_symlink()]
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_ours_is_no_link(tmp_path, victim):
    for name in ("figures", "checkpoints"):
        os.symlink(victim.parent, tmp_path / name)
    section = Section("curves", "Curves", [Charts([Picture(Figure(), "victim", "a curve", [])])])
    with pytest.raises(SetupError, match="figures is a symbolic link: name the folder that it leads to"):
        save_figures([section], tmp_path / "figures")
    with pytest.raises(SetupError, match="checkpoints is a symbolic link"):
        RunDirectory(tmp_path).create()
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"file/figures cannot be made \(Not a directory\)"):
        own_folder(tmp_path / "file" / "figures")


def test_a_cache_is_locked_in_its_own_folder_and_tidied_by_its_whole_name(tmp_path, victim):
    cache = tmp_path / "cache"
    (cache / ".other-abc.tmp").mkdir(parents=True)
    with cache_lock(TextData(name="*", root="x", cache=str(cache)), print):
        assert (cache / ".other-abc.tmp").is_dir()
    os.symlink(victim.parent / "new", cache / ".text.lock")
    with (
        pytest.raises(OSError, match="is a symbolic link"),
        cache_lock(TextData(name="text", root="x", cache=str(cache)), print),
    ):
        pass


def writes(node: ast.AST) -> bool:
    """Whether a call opens a file for writing, or has a library write one at a path."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "open":
        modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return any(isinstance(mode, str) and set("wax+") & set(mode) and len(mode) < 4 for mode in modes)
    on_file = bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id in ("file", "buffer")
    libraries = {"savefig", "save_file", "savez", "to_csv"}
    return name in {"write_text", "write_bytes", "touch", "copyfile"} or (name in libraries and not on_file)


def test_every_other_file_is_written_by_the_one_function():
    paths = [*(REPOSITORY / "fourierformer").rglob("*.py"), *(REPOSITORY / "scripts").glob("*.py")]
    found = {path for path in paths if any(map(writes, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))}
    assert {str(path.relative_to(REPOSITORY)) for path in found} == WRITERS

"""Building the CPU kernel: once for all processes, never half of it, and one sentence where it cannot be built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fourierformer.kernels.sinc import library
from fourierformer.kernels.sinc.library import Unavailable
from tests.helpers.sinc_cases import needs_compiled

COMPILER = """#!/bin/sh
# Stands in for a C++ compiler: records that it was called and copies the library of a real one.
echo called >> {log}
{before}
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
cp {built} "$out"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    library.load.cache_clear()
    library._obstacle.cache_clear()
    yield tmp_path / "cache" / "fourierformer"
    library.load.cache_clear()
    library._obstacle.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """compiler(before="shell commands", built=library) installs a stand-in as $CXX, compiler.calls() counts."""
    real, log = library.load()._name, tmp_path / "calls"

    def install(before="", built=real):
        script = tmp_path / "compiler"
        script.write_text(COMPILER.format(log=log, built=built, before=before))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    install.calls = lambda: len(log.read_text().splitlines()) if log.exists() else 0
    return install


pytestmark = needs_compiled


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def test_it_is_built_once_and_said_once(compiler, cache, capsys):
    compiler()
    first = library.load()
    assert "building the CPU kernel of Fourier attention, once" in capsys.readouterr().err
    library.load.cache_clear()  # as another process
    assert library.load()._name == first._name
    assert libraries(cache) == [Path(first._name)]
    assert compiler.calls() == 1
    assert not capsys.readouterr().err
    assert cache.stat().st_mode & 0o077 == 0  # code is loaded from it: nobody else may write


@pytest.mark.full("builds the library anew")
def test_two_processes_build_it_once(compiler, cache):
    compiler(before="sleep 1")
    command = [sys.executable, "-c", "from fourierformer.kernels.sinc.library import build_now; build_now()"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0].strip() for process in processes]
    assert compiler.calls() == 1
    assert printed == [str(path) for path in 2 * libraries(cache)]


@pytest.mark.parametrize("damage", ["half", "no sum", "no text", "nothing"])
def test_half_a_library_is_built_again(compiler, cache, damage):
    compiler()
    path = Path(library.load()._name)
    library.load.cache_clear()
    path.unlink()  # a new file, not a changed one: this process has the old one loaded
    if damage != "nothing":
        path.write_bytes(Path(shutil.copy(os.environ["CXX"], path)).read_bytes()[:100])
    if damage == "no sum":
        path.with_suffix(".sha256").unlink()
    if damage == "no text":
        path.with_suffix(".sha256").write_bytes(b"\xff\xfe")
    library.load()
    assert compiler.calls() == 2
    assert library._open(path) is not None


def test_without_a_compiler_any_whole_library_is_taken(compiler, cache, monkeypatch):
    compiler()
    path = Path(library.load()._name)
    library.load.cache_clear()
    parts = path.name.removesuffix(".so").split("-")
    damaged = path.with_name("-".join([*parts[:-1], "0" * 12]) + ".so")
    assert damaged < path
    damaged.write_bytes(b"half")
    damaged.with_suffix(".sha256").write_text("0")
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    assert Path(library.load()._name) == path


def test_a_user_without_a_home_has_a_folder_among_the_temporary_files(compiler, cache, tmp_path, monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    compiler()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(library.Path, "expanduser", homeless)
    assert Path(library.load()._name).parent == tmp_path / "temporary" / f"fourierformer-{os.getuid()}"


def test_a_file_system_without_locks_is_a_reason(compiler, cache, monkeypatch):
    def none(self):
        raise NotImplementedError("FileSystem does not appear to support flock")

    compiler()
    monkeypatch.setattr(library.FileLock, "__enter__", none)
    assert "file system without locks (set XDG_CACHE_HOME)" in library.why_unavailable()


def test_a_cache_that_cannot_be_written_is_passed_over(compiler, cache, tmp_path):
    compiler()
    cache.parent.write_text("a file where the folder should be")  # file modes would not stop root
    assert Path(library.load()._name).parent == tmp_path / "temporary" / f"fourierformer-{os.getuid()}"


def test_no_folder_for_the_library(compiler, cache, tmp_path, monkeypatch):
    compiler()
    cache.parent.write_text("")
    monkeypatch.setattr(library.tempfile, "tempdir", str(tmp_path / "cache"))
    with pytest.raises(Unavailable, match=r"no folder for it can be written: .*XDG_CACHE_HOME"):
        library.load()


def test_no_folder_for_temporary_files(compiler, cache, monkeypatch):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    compiler()
    built = library.load()
    library.load.cache_clear()
    monkeypatch.setattr(library.tempfile, "gettempdir", none)
    assert library.load()._name == built._name
    for path in libraries(cache):
        path.unlink()
    library.load.cache_clear()
    cache.parent.rename(cache.parent.with_name("elsewhere"))
    cache.parent.write_text("a file where the folder should be")
    assert "no folder for it can be written" in str(library.why_unavailable())


def test_others_must_not_be_able_to_write_where_code_is_loaded_from(compiler, cache, tmp_path):
    compiler()
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert Path(library.load()._name).parent == tmp_path / "temporary" / f"fourierformer-{os.getuid()}"


def plant(path: Path) -> None:
    """Put a new file in the place of a library, with its checksum: one that is loaded must not be changed."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    library.load.cache_clear()


def another_owner(path: Path) -> None:
    plant(path)
    os.chown(path, 12345, 12345)


def writable_for_others(path: Path) -> None:
    plant(path)
    path.chmod(0o777)


def link_of_another_owner(path: Path) -> None:
    plant(path)
    shutil.move(path, path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))
    os.lchown(path, 12345, 12345)


@pytest.mark.parametrize("planted", [another_owner, writable_for_others, link_of_another_owner])
def test_a_library_that_others_may_have_planted_is_built_again(compiler, cache, planted):
    if planted is not writable_for_others and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    compiler()
    path = Path(library.load()._name)
    planted(path)
    library.load()
    assert compiler.calls() == 2
    facts = path.lstat()
    assert facts.st_uid == os.getuid()
    assert not facts.st_mode & 0o022


def test_a_library_is_trusted_under_every_umask(compiler, cache):
    before = os.umask(0)
    try:
        compiler()
        library.load()
        library.load.cache_clear()
        library.load()
    finally:
        os.umask(before)
    assert compiler.calls() == 1


def test_a_compiler_that_fails_is_quoted(compiler, cache):
    compiler(before="echo 'in file sinc.cpp' >&2; echo 'fatal error: no such header' >&2; exit 1")
    with pytest.raises(Unavailable, match=r"the compiler .* failed: fatal error: no such header"):
        library.load()
    assert not libraries(cache)
    assert library.why_unavailable().endswith("no such header")


def test_a_compiler_that_builds_nothing_or_nonsense(compiler, cache, tmp_path):
    compiler(before="exit 0")
    with pytest.raises(Unavailable, match=r"the compiler .* failed: it wrote no library"):
        library.load()
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("no library")
    compiler(built=nonsense)
    with pytest.raises(Unavailable, match=r"the library built by .* cannot be loaded"):
        library.load()


def test_without_a_compiler(compiler, cache, monkeypatch, tmp_path):
    compiler()
    built = library.load()._name
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    library.load.cache_clear()
    assert library.load()._name == built  # one that some compiler made for this machine
    Path(built).unlink()
    library.load.cache_clear()
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler found \(c\+\+, g\+\+, clang\+\+\): install one"):
        library.load()


def test_a_compiler_that_is_not_there_is_passed_over(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O9")
    assert Path(library.find_compiler()).name in library.COMPILERS


def test_different_machines_share_one_cache(monkeypatch):
    compiler = library.find_compiler()
    names = {library.library_name(compiler)}
    for function, value in (
        ("vector_instructions", "AVX1024"),
        ("platform.machine", "arm"),
        ("platform.libc_ver", ("x", "1")),
    ):
        with monkeypatch.context() as other:
            other.setattr(f"fourierformer.kernels.sinc.library.{function}", lambda value=value: value)
            names.add(library.library_name(compiler))
    names.add(library.library_name("/bin/sh"))
    assert len(names) == 5
    assert library.library_name(compiler) in names


@pytest.mark.full("builds the library anew")
def test_the_widest_vectors_compile(cache):
    """They cannot run everywhere, but nothing but the compiler is needed to build them."""
    cache.mkdir(parents=True)
    command = [library.find_compiler(), *library.FLAGS, *library.VECTORS["AVX512"], library.SOURCES / "sinc.cpp"]
    result = subprocess.run([*command, "-o", cache / "x.so"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


NARROW = """
import torch
from tests.helpers.sinc_cases import inputs, run, error
from fourierformer.kernels.sinc import library, sinc_attention
from fourierformer.kernels.sinc.reference import sinc_attention_reference
print(library.vector_instructions())
tensors, doutput = inputs(heads=2, queries=40, keys=50, width=10, value_width=7)
options = dict(power=4, eps=1e-6, causal=True)
truth = run(sinc_attention_reference, tensors, doutput, **options)
for dtype, digits in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
    results = run(sinc_attention, tensors, doutput, dtype, backend="compiled", **options)
    print(max(error(ours, exact) for ours, exact in zip(results, truth)) < digits)
"""


@pytest.mark.full("builds the library anew")
@pytest.mark.parametrize("vectors", ["DEFAULT", "AVX2"])
def test_a_processor_without_wide_vectors(cache, vectors):
    if vectors == "AVX2" and library.vector_instructions() not in library.VECTORS:
        pytest.skip("this processor has no AVX2")
    environment = os.environ | {"ATEN_CPU_CAPABILITY": vectors.lower(), "PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run([sys.executable, "-c", NARROW], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == [vectors, "True", "True"], result.stderr

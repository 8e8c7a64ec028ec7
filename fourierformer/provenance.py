"""The origin of a result: the commit and its uncommitted changes, the versions, the hardware, the command."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# configs, scripts and the paper's numbers: in a folder of an installed package, else in the repository
INSTALLED = Path(__file__).resolve().parent / "share"
SHARE = INSTALLED if INSTALLED.is_dir() else REPOSITORY
CONFIGS = SHARE / "configs"
MEASURED = SHARE / "results" / "measured"  # committed measurements
PACKAGES = ("fourierformer", "torch", "triton", "numpy", "hydra-core", "omegaconf", "timm", "wandb", "datasets")
RESULTS = (":!results/measured", ":!studies")  # written after runs: a new result must not mark the next run as dirty
SECRET = "(?:key|(?<!previous_)token|secret|password)"  # ends of names whose values are secrets
COMMIT = re.compile("[0-9a-f]{40}")
LARGEST_DIFF = 1_000_000  # characters; a larger diff is data and not kept


def commit_and_command() -> dict[str, str]:
    """Commit and command, without folders: beside a number that was measured after its run."""
    return {"commit": short_commit(git_state()[0]), "command": without_folders(command())}


def describe() -> tuple[dict, str | None]:
    """(the facts in meta.json, the uncommitted changes as a diff or None if there are none or too many)."""
    facts, diff = git_state()
    torch = sys.modules.get("torch")  # not imported for its GPUs: reading a run directory must stay quick
    count = torch.cuda.device_count() if torch and torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_name(index) for index in range(count)] if torch else []
    facts |= {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": gpus,
        "command": command(),
    }
    return facts, diff


def command() -> str:
    """This process's command line, as a user would type it."""
    program, *arguments = sys.argv
    return f"{command_of(program)} {shlex.join(map(_masked, arguments))}".strip()


def command_of(program: str) -> str:
    """The command that starts a program: python for a script, none for the installed `fourierformer train lm`."""
    return shlex.join(["python", program]) if program.endswith(".py") else program


def git_state(repository: Path = REPOSITORY) -> tuple[dict, str | None]:
    """Commit and uncommitted changes of this package's own repository; the current directory may be another project."""
    # without this check an installed copy would report the repository that holds its virtual environment
    commit = _git(repository, "rev-parse", "HEAD") if (repository / ".git").exists() else None
    if commit is None:
        return {"commit": None, "dirty": None}, None
    changes = _git(repository, "status", "--porcelain", "--", ".", *RESULTS) or ""
    facts = {"commit": commit.strip(), "dirty": bool(changes)}
    if not changes:
        return facts, None
    facts["untracked"] = [line[3:] for line in changes.splitlines() if line.startswith("??")][:50]
    diff = _git(repository, "diff", "HEAD", "--", ".", *RESULTS) or ""
    return facts, diff if 0 < len(diff) <= LARGEST_DIFF else None


def code_since(facts: Mapping) -> str | None:
    """Known differences of the code from the one that made a result, `facts` being its meta.json; None without any."""
    if facts.get("dirty"):
        return "trained with uncommitted changes"
    commit = facts.get("commit")
    if not (isinstance(commit, str) and COMMIT.fullmatch(commit)):  # git would read "--output=FILE" as an option
        return None
    changed = _git(REPOSITORY, "diff", "--name-only", commit, "--", "fourierformer") or ""
    count = len(changed.splitlines())
    return f"{count} file{'s' if count > 1 else ''} of fourierformer/ changed since then" if count else None


def code_of_packages(names: Iterable[str]) -> dict[str, str]:
    """The sha256 of the file of each of these attentions that another installed package has: no commit of this
    repository has its code."""
    modules = {entry.name: entry.module for entry in importlib.metadata.entry_points(group="fourierformer.attention")}
    digests = {}
    for name in modules.keys() & set(names):
        with contextlib.suppress(Exception):  # finding a file imports the package that it is in, which may fail
            found = importlib.util.find_spec(modules[name])
            if found and found.origin:
                digests[name] = hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
    return digests


def packages_since(facts: Mapping) -> str | None:
    """The attentions of other packages whose code differs from the code that made a result, in words; None without."""
    recorded = facts.get("attention_code")
    if not isinstance(recorded, dict) or (now := code_of_packages(map(str, recorded))) == recorded:
        return None
    changed = sorted(name for name in recorded if now.get(name) != recorded[name])
    return f"the code of attention {', '.join(changed)} changed since then"


def header(program: str, libraries: Iterable[str] = ("torch", "triton"), **more: str) -> str:
    """Comment lines for the top of a CSV file: command, commit, versions, then `more` (machine=...). `program` is the
    part after `python`: "-m studies.estimators.simulate", "-m benchmarks.kernel"."""
    facts, _ = describe()
    versions = {"python": facts["python"], **{name: _version(name) for name in libraries}}
    lines = {
        "command": without_folders(f"python {program} {shlex.join(sys.argv[1:])}").strip(),
        "commit": short_commit(facts),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        **more,
    }
    return "".join(f"# {name}: {text}\n" for name, text in lines.items())


def short_commit(facts: dict) -> str:
    """Seven digits, and a + where there are uncommitted changes."""
    return (facts["commit"] or "unknown")[:7] + ("+" if facts["dirty"] else "")


def machine(device: str = "cpu") -> str:
    """The computing hardware in words."""
    if device == "cpu":
        return f"{len(os.sched_getaffinity(0))}-core CPU{_vector_instructions()}"
    import torch

    return torch.cuda.get_device_name()


def without_folders(command: str) -> str:
    """A command line in which every absolute path is cut to its last part: the folders exist on this machine only."""
    return shlex.join(map(_without_folder, map(_masked, split_words(command))))


def _without_folder(word: str) -> str:
    if re.match(r"[^=/]*=?[\[{]", word):  # a list or a mapping: hydra.searchpath=[file:///home/me/conf,/data/x]
        return re.sub(r"""([\[{,(\s"']|:(?!//)|file://)/(?!/)(?:[^\],}"'\s]*/)?([^\],}"'/\s]+)/*""", r"\1\2", word)
    return re.sub(r"""(^|=)(["']?)/(?:.*/)?([^/]*[^/"'])/*(["']?)$""", r"\1\2\3\4", word)


def without_secrets(command: str) -> str:
    """A command line in which the values of keys that look like secrets are masked."""
    words = split_words(command)
    masked = list(map(_masked, words))
    return command if masked == words else shlex.join(masked)


def split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # unmatched quotes: no command line
        return [command]


def _masked(word: str) -> str:
    """A word of a command line, +hydra.job.env_set.WANDB_API_KEY=... or +env={API_KEY: ...}, without secrets. Knobs of
    attentions, such as attention.keys_per_token, are none."""
    if re.match(r"[+~]*(\w+_)?attention\b", word):
        return word
    if of_key := re.match(rf"[-+~\w.@/]*{SECRET}=", word, re.IGNORECASE):
        return f"{of_key[0]}***"
    end = r"""(?=["'\s]*(?:,|}|\]*$))"""
    inside = rf"""({SECRET}['"]?\s*[:=]\s*)(?:"[^"]*"|'[^']*'|[^,}}]+?){end}"""
    return re.sub(inside, r"\1***", word, flags=re.IGNORECASE)


def _git(repository: Path, *arguments: str) -> str | None:
    """The output of a git command; None if git is missing or fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # safe.directory: in a container the checkout often belongs to another user
    words = ["git", "-c", "safe.directory=*", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(words, cwd=repository, env=environment, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor() or platform.machine()) + _vector_instructions()


def _vector_instructions() -> str:
    """The instructions that decide on kernels, for virtual machines with a vague CPU name; empty without torch."""
    torch = sys.modules.get("torch")
    return f", {torch.backends.cpu.get_cpu_capability()}" if torch else ""

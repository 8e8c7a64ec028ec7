"""Check this machine: one line per check, and a fix for each failure. python scripts/doctor.py [--runs-root runs]"""

import argparse
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ["torch", "triton", "hydra", "omegaconf", "timm", "sklearn", "datasets", "wandb", "rich"]
PACKAGES += ["matplotlib", "jinja2"]
INSTALL = "make setup (or: pip install -c constraints.txt -e .)"


class Problem(Exception):
    """A failed check: 'failure -> fix'."""


def python() -> str:
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        raise Problem(f"{sys.version.split()[0]} -> use Python 3.11, 3.12 or 3.13 (hydra-core does not start on 3.14)")
    return sys.version.split()[0]


def packages() -> str:
    installed = []
    for name in PACKAGES:
        try:
            importlib.import_module(name)
            installed.append(f"{name} {version('hydra-core' if name == 'hydra' else name)}")
        except PackageNotFoundError:
            installed.append(name)
        except ImportError as error:
            raise Problem(f"{name} cannot be imported ({error}) -> {INSTALL}") from None
    return ", ".join(installed)


def gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none seen: training runs on the CPU (a GPU that should be here: check nvidia-smi and the driver)"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def compiler() -> str:
    from fourierformer.kernels.sinc.library import find_compiler

    return find_compiler() or "none: Fourier attention is many times slower on a CPU without it (apt install g++)"


def fourier_kernel() -> str:
    """Compare the implementation of Fourier attention for this machine with the printed formula."""
    import torch

    from fourierformer.kernels.sinc import choose_backend, sinc_attention

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 16, generator=generator).to(device) for _ in range(3))
    radius = torch.tensor(1.0, device=device)
    fast = sinc_attention(q, k, v, radius, eps=1e-6, causal=True)
    exact = sinc_attention(*(t.double() for t in (q, k, v, radius)), eps=1e-6, causal=True, backend="reference")
    error = ((fast - exact).norm() / exact.norm()).item()
    name, reason = choose_backend(q)
    if not error < 1e-2:
        raise Problem(f"{name} is off by {error:.1e} -> attention.backend=reference works; please report this")
    return f"{name} ({reason}), relative error {error:.0e} against the float64 formula"


def embedded_text() -> str:
    from fourierformer.data.text.corpus import TextData, check_available

    check_available(TextData(name="builtin_text", source="builtin"))
    return "the installed Python has the documentation that it is made of"


def real_data() -> str:
    present = [name for name in ("wikitext-2", "wikitext-103", "enwik8") if (Path("data") / name).exists()]
    return ", ".join(present) or "none in data/: the built-in corpus needs none; python scripts/prepare_data.py --list"


def write_access(runs_root: Path) -> str:
    from fourierformer.printing import visible

    shown = visible(runs_root.absolute())
    try:
        runs_root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs_root):
            free = shutil.disk_usage(runs_root).free / 2**30
    except OSError as error:
        raise Problem(f"cannot write {shown} ({error.strerror}) -> runs_root=/a/folder/of/yours") from None
    if free < 1:
        raise Problem(f"{free:.1f} GiB free in {shown} -> free some space, or runs_root=/a/larger/disk")
    return f"{shown}, {free:.0f} GiB free"


def wandb_mode() -> str:
    from fourierformer.tracking.wandb import choose_mode

    mode, reason = choose_mode("auto")
    return f"tracker=wandb would be {mode}" + (f" ({reason})" if reason else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs-root", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    functions = (python, packages, gpu, compiler, fourier_kernel, embedded_text, real_data)
    checks: dict[str, Callable[[], str]] = {check.__name__.replace("_", " "): check for check in functions}
    checks |= {"write access": lambda: write_access(arguments.runs_root), "wandb": wandb_mode}
    failed = False
    for name, check in checks.items():
        try:
            print(f"ok    {name:15s} {check()}", flush=True)
        except Exception as error:  # the next checks still run
            failed = True
            reason = error if isinstance(error, Problem) else f"{type(error).__name__}: {error} -> {INSTALL}"
            print(f"FAIL  {name:15s} {reason}", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()

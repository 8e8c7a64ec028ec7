"""Shared by all tests: the real data folder, no network, and Triton without a GPU."""

import os
from pathlib import Path

import pytest
import torch

# before anything imports `datasets`, which reads it once: no test may wait for the hub
os.environ["HF_HUB_OFFLINE"] = "1"

# before anything imports triton, which decides there: without a GPU the kernels run in Triton's interpreter (slow, so
# on tiny shapes); on one they are compiled. backend="auto" takes the portable backend on a CPU all the same.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with wikitext-2, wikitext-103 ...: FOURIERFORMER_TEST_DATA, else ../shared/data beside the repository."""
    named = os.environ.get("FOURIERFORMER_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is no folder (set FOURIERFORMER_TEST_DATA)")
    return folder

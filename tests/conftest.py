"""Shared by all tests: the real data folder, and no network."""

import os
from pathlib import Path

import pytest

# before anything imports `datasets`, which reads it once: no test may wait for the hub
os.environ["HF_HUB_OFFLINE"] = "1"

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with wikitext-2, wikitext-103 ...: FOURIERFORMER_TEST_DATA, else ../shared/data beside the repository."""
    named = os.environ.get("FOURIERFORMER_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is no folder (set FOURIERFORMER_TEST_DATA)")
    return folder

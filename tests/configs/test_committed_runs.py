"""Committed runs keep their hash, so that the same command finds them."""

import json

import pandas as pd
import pytest

from fourierformer.config import config_hash
from tests.helpers.command_line import REPOSITORY

FILES = [
    path
    for path in sorted([*REPOSITORY.glob("studies/*/*.csv"), *REPOSITORY.glob("results/measured/*.csv")])
    if {"config", "config_hash"} <= set(pd.read_csv(path, comment="#", nrows=0).columns)
]


def nested(flat: dict) -> dict:
    values: dict = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return values


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_config_of_every_committed_run_has_its_hash(path):
    rows = pd.read_csv(path, comment="#", dtype={"config_hash": str})
    assert len(rows)
    hashes = [config_hash(nested(json.loads(row.config) | {"seed": int(row.seed)})) for row in rows.itertuples()]
    assert hashes == list(rows["config_hash"])

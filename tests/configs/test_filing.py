"""Where a command's run is filed, and a data.root= that nothing reads."""

import pytest
from hydra import compose, initialize_config_dir

from fourierformer.errors import SetupError
from fourierformer.runs.spec import read_command
from tests.helpers.command_line import CONFIGS


def spec_of(script: str, *overrides: str):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return read_command(compose(script, list(overrides)))


@pytest.mark.parametrize(
    ("script", "overrides", "folder"),
    [
        ("train_lm", (), "builtin"),
        ("train_lm", ("data=builtin_text",), "builtin"),
        ("train_lm", ("data=wikitext2",), "wikitext2"),
        ("train_lm", ("experiment=builtin_medium", "data=wikitext103"), "wikitext103_medium"),
        ("train_lm", ("experiment=wt2_small",), "wt2_small"),
        ("train_vit", ("data=cifar10",), "cifar10_vit"),
        ("train_lm", ("data=wikitext2", "experiment_name=mine"), "mine"),
    ],
)
def test_a_run_is_filed_under_builtin_only_if_its_data_is(script, overrides, folder):
    assert spec_of(script, *overrides).directory.parent.as_posix() == f"runs/{folder}"


@pytest.mark.parametrize("script", ["train_lm", "train_vit"])
def test_a_folder_that_nothing_reads_is_refused(script):
    with pytest.raises(SetupError, match=r"data\.root=/data/mine would not be read: data=builtin_"):
        spec_of(script, "data.root=/data/mine")

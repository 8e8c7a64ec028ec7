"""A mechanism of another installed package is found by its entry point, and by nothing that a config says."""

import importlib
import sys

import pytest

import fourierformer
from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from scripts import evaluate
from tests.helpers.command_line import MODEL, train_lm

CLASS = """
from fourierformer.attention import Attention, register

@register("last_value", "the value of the token itself, times a factor")
class LastValue(Attention):
    def __init__(self, geometry, *, factor: float = 1.0):
        super().__init__(geometry)
        self.factor = factor

    def mix(self, q, k, v, x):
        return self.factor * v
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with one attention, and the folder of its configs."""
    site = tmp_path / "site-packages"
    facts, configs = site / "my_package-1.0.dist-info", site / "my_package/configs/attention"
    configs.mkdir(parents=True)
    facts.mkdir()
    (site / "my_package/__init__.py").touch()
    (site / "my_package/my_attention.py").write_text(CLASS)
    (configs / "last_value.yaml").write_text("name: last_value\nfactor: 1.0\n")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[fourierformer.attention]\nlast_value = my_package.my_attention\n")
    attention.available()  # else mechanisms that are imported meanwhile would be registered in the copy alone
    monkeypatch.setattr(attention, "_registry", dict(attention._registry))
    monkeypatch.syspath_prepend(site)
    attention._of_packages.cache_clear()
    yield site / "my_package"
    attention._of_packages.cache_clear()
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def test_it_trains_with_its_own_config_and_is_loaded_again(package, tmp_path):
    command = (f"--config-dir={package / 'configs'}", *MODEL, "attention=last_value", "attention.factor=2.0")
    assert train_lm(*command, f"run_dir={tmp_path / 'run'}", "trainer.steps=1") == 0
    layer = fourierformer.load_run(tmp_path / "run").model.layers[0].attention
    assert (type(layer).__module__, layer.factor) == ("my_package.my_attention", 2.0)


def test_a_change_of_its_code_is_named_where_an_earlier_result_is_shown(package, tmp_path, capfd, monkeypatch):
    """No commit of this repository has its code, and the hash of a run covers the config alone."""
    command = (f"--config-dir={package / 'configs'}", *MODEL, "attention=last_value", f"run_dir={tmp_path / 'run'}")
    assert train_lm(*command, "trainer.steps=1") == 0
    capfd.readouterr()
    assert train_lm(*command, "trainer.steps=1") == 0
    assert "the code of attention" not in capfd.readouterr().out
    (package / "my_attention.py").write_text(CLASS.replace("self.factor * v", "2 * self.factor * v"))
    assert train_lm(*command, "trainer.steps=1") == 0
    assert "; the code of attention last_value changed since then (fresh=true runs it again)" in capfd.readouterr().out
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(tmp_path / "run"), "--limit", "200"])
    evaluate.main()
    assert "note: the code of attention last_value changed since then\n" in capfd.readouterr().out


def test_a_run_is_loaded_when_its_mechanism_has_one_knob_more(package, tmp_path):
    command = (f"--config-dir={package / 'configs'}", *MODEL, "attention=last_value", f"run_dir={tmp_path / 'run'}")
    assert train_lm(*command, "attention.factor=2.0", "trainer.steps=1") == 0
    (package / "my_attention.py").write_text(CLASS.replace("= 1.0)", "= 1.0, power: int = 1)"))
    del sys.modules["my_package.my_attention"], attention._registry["last_value"]
    layer = fourierformer.load_run(tmp_path / "run").model.layers[0].attention
    assert (layer.factor, list(attention.knobs("last_value"))) == (2.0, ["factor", "power"])


def test_it_is_among_the_available_ones_and_not_imported_before_it_is_named(package):
    attention.build("softmax", Geometry(dim=8, heads=2, length=9, causal=True))
    assert "my_package" not in sys.modules
    assert "last_value" in attention.available()


@pytest.mark.parametrize("code", ["import no_such_module", "def (", "no_such_name"])
def test_a_package_that_cannot_be_imported_is_named(package, code):
    (package / "my_attention.py").write_text(code)
    with pytest.raises(SetupError, match=r"'last_value' of an installed package: no import of my_package.my_attention"):
        attention.build("last_value", Geometry(dim=8, heads=2, length=9, causal=True))


def test_a_package_that_is_not_installed_is_not_imported(package):
    (package.parent / "my_package-1.0.dist-info/entry_points.txt").unlink()
    importlib.invalidate_caches()
    attention._of_packages.cache_clear()
    with pytest.raises(SetupError, match=r"unknown attention 'last_value'.* another package's, install that here"):
        attention.build("last_value", Geometry(dim=8, heads=2, length=9, causal=True))
    assert "my_package" not in sys.modules


def test_a_module_may_register_several_names_under_one_entry_point(package):
    (package / "my_attention.py").write_text(CLASS.replace("\n@", '\n@register("twice", "two", factor=2.0)\n@'))
    assert attention.build("twice", Geometry(dim=8, heads=2, length=9, causal=True)).factor == 2.0


def test_a_yaml_with_the_name_of_another_attention_is_refused(package, tmp_path, capfd):
    """softmax would be trained, and shown as such, or an earlier run of it."""
    (package / "configs/attention/last_value.yaml").write_text("name: softmax\n")
    command = (*MODEL, "attention=last_value", f"--config-dir={package / 'configs'}", f"run_dir={tmp_path / 'run'}")
    assert train_lm(*command) == 2
    assert "attention=last_value has attention.name=softmax, and softmax would run" in capfd.readouterr().err
    (package / "configs/attention/last_value.yaml").write_text("name: last_value\n factor: [1\n")
    assert train_lm(*command) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: a config cannot be read: ")
    assert "last_value.yaml" in error
    assert error.count("\n") == 1
    (package / "configs/attention/last_value.yaml").write_bytes(b"name: last_value  # \xfc\n")
    assert train_lm(*command) == 2
    assert capfd.readouterr().err.startswith("error: a config cannot be read: 'utf-8' codec can't decode byte 0xfc")


@pytest.mark.parametrize("option", ["--config-dir={}", "--config-dir {}"])
def test_the_folder_of_configs_may_stand_between_overrides(package, tmp_path, option):
    option = option.format(package / "configs").split()
    assert train_lm(*MODEL, *option, "attention=last_value", f"run_dir={tmp_path / 'run'}", "dry_run=true") == 0

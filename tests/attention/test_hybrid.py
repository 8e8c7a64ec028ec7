"""hybrid is a model whose layers are those of other mechanisms, in a cycle."""

import pytest
import torch

import fourierformer
from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from fourierformer.files import read_json
from fourierformer.models.config import attention_layers
from fourierformer.runs.launch import composed
from fourierformer.runs.spec import attention_of, read_command, task_of
from tests.helpers.command_line import MODEL, train_lm

HYBRID = (
    *(word for word in MODEL if "layers" not in word and "attention" not in word),
    "attention=hybrid",
    "model.layers=3",
)


def layer_of(number: int, *, causal: bool = True, **knobs) -> attention.Attention:
    geometry = Geometry(dim=16, heads=2, length=9, causal=causal, layer=number, seed=3)
    return attention.build("hybrid", geometry, **knobs)


@pytest.mark.parametrize(
    ("number", "name"), [(0, "softmax"), (1, "performer"), (2, "band"), (3, "softmax"), (5, "band")]
)
def test_a_layer_is_that_of_its_mechanism_bit_by_bit(number, name):
    torch.manual_seed(0)
    layer = layer_of(number, pattern=["softmax", "performer", "band"], knobs={"band": {"window": 2}})
    torch.manual_seed(0)
    geometry = Geometry(dim=16, heads=2, length=9, causal=True, layer=number, seed=3)
    own = attention.build(name, geometry, **({"window": 2} if name == "band" else {}))
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    assert type(layer) is type(own)
    torch.testing.assert_close(layer(x), own(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"pattern": []}, "name the mechanism of each layer"),
        ({"pattern": ["softmax", "fourierr"]}, "unknown attention 'fourierr'.*did you mean 'fourier'"),
        ({"pattern": ["softmax", "fnet"]}, "'fnet' cannot be causal: "),
        ({"pattern": ["softmax", "elliptical"]}, "cannot have 'elliptical', which reads the layer below"),
        ({"pattern": ["softmax", "residual_scores"]}, "cannot have 'residual_scores', which reads the layer below"),
        (
            {"knobs": {"band": {"window": 2}}},
            r"attention.knobs.band: not in attention.pattern \(valid: fourier, softmax",
        ),
        ({"knobs": {"fourier": {"powr": 2}}}, "attention 'fourier' has no knob 'powr'.*did you mean 'power'"),
        ({"knobs": {"fourier": {"power": "two"}}}, "attention 'fourier': power='two': expected a whole number"),
    ],
)
def test_refusals_are_those_of_each_layer(knobs, message):
    with pytest.raises(SetupError, match=message):
        layer_of(1, **knobs)


def test_values_of_other_mechanisms_are_not_added():
    with pytest.raises(SetupError, match=r"'hybrid' cannot have model.value_residual: "):
        attention.build("hybrid", Geometry(dim=16, heads=2, length=9, causal=True, value_residual=0.5))


def test_a_refusal_of_a_later_layer_comes_before_the_data(tmp_path, capfd):
    pattern = "attention.pattern=[softmax,softmax,fnet]"
    assert train_lm(*HYBRID, pattern, f"run_dir={tmp_path / 'run'}", "dry_run=true") == 2
    assert "error: attention 'fnet' cannot be causal: " in capfd.readouterr().err


def test_a_pattern_longer_than_the_model_is_refused(tmp_path, capfd):
    pattern = "attention.pattern=[softmax,fourier,gaussian,mgk,none]"
    assert train_lm(*HYBRID, pattern, f"run_dir={tmp_path / 'run'}", "dry_run=true") == 2
    assert "names 5 mechanisms for 3 layers: there would be no mgk, none." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "layers"),
    [
        (["experiment=recall", "model.layers=2"], 2),
        (["experiment=regression", "model.layers=2"], 2),
        (["experiment=builtin_vit"], 3),
        (["experiment=builtin_seq2seq"], 6),
        (["experiment=builtin_mlm"], 2),
        (["experiment=wt103_small"], 16),
    ],
    ids=lambda value: value[0].partition("=")[2] if isinstance(value, list) else "",
)
def test_attention_layers_are_those_of_the_whole_model_with_numbers_of_their_own_and_the_seed_of_the_run(
    overrides, layers
):
    script = "train_vit" if "vit" in overrides[0] else "train_lm"
    spec = read_command(composed(script, [*overrides, "seed=7"]))
    with torch.device("meta"):
        model = task_of(spec).build_model(spec, attention_of(spec), None)
    assert attention_layers(spec.model) == layers
    geometries = [module.geometry for module in model.modules() if isinstance(module, attention.Attention)]
    assert sorted(geometry.layer for geometry in geometries) == list(range(layers))
    assert {geometry.seed for geometry in geometries} == {7}


def test_a_run_trains_and_is_loaded_with_the_knobs_of_each_layer(tmp_path):
    knobs = "attention.knobs={fourier:{eps:0.25,backend:portable}}"
    assert train_lm(*HYBRID, knobs, f"run_dir={tmp_path / 'run'}", "trainer.steps=2") == 0
    layers = [layer.attention for layer in fourierformer.load_run(tmp_path / "run").model.layers]
    assert [type(layer).__name__ for layer in layers] == ["Softmax", "Fourier", "Softmax"]
    assert layers[1].eps == 0.25
    assert read_json(tmp_path / "run/summary.json")["attention_backend"] == "portable"

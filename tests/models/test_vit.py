"""The vision transformer against timm's stock DeiT and the paper's counts."""

from dataclasses import asdict
from functools import partial

import pytest
import timm
import torch
from hydra import compose, initialize_config_dir
from timm.layers import drop_path

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.base import layers_of
from fourierformer.errors import SetupError
from fourierformer.models.vit import StochasticDepth, ViT, ViTConfig, build_vit, draw_stochastic_depth
from tests.helpers.command_line import CONFIGS


def config(name: str) -> ViTConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return ViTConfig(**compose(overrides=[f"+model={name}"]).model)


def small(name="softmax", depth=3, classes=10, **values) -> ViT:
    values = {"image_size": 32, "patch": 8, "dim": 48, "heads": 3, "mlp_ratio": 4.0, "drop_path": 0.0} | values
    return build_vit(ViTConfig(name="small", depth=depth, **values), classes, partial(attention.build, name))


def stock(model: ViT, drop: float = 0.0) -> torch.nn.Module:
    """timm's DeiT of the same shape with the same weights."""
    c = model.config
    other = timm.create_model(
        "deit_tiny_patch16_224",
        img_size=c.image_size,
        patch_size=c.patch,
        embed_dim=c.dim,
        depth=c.depth,
        num_heads=c.heads,
        num_classes=model.num_classes,
        drop_path_rate=drop,
        class_token=c.pool == "class_token",
        global_pool={"class_token": "token", "average": "avg"}[c.pool],
        pos_embed={"learned": "learn", "none": "none"}[c.position],
    )
    other = other.to(model.patch_embed.proj.weight.dtype)
    other.load_state_dict(model.state_dict())
    return other


# -- the paper's model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "name", "count"),
    [
        ("deit_tiny", "softmax", 5_717_416),
        ("deit_tiny", "fourier", 5_717_428),
        ("deit_tiny", "fourier_vector", 5_718_184),
        ("deit_small", "softmax", 22_050_664),
        ("deit_tiny_gap", "softmax", 5_717_416 - 192 - 197 * 192),  # no class token, no positions
        ("deit_small_gap", "softmax", 22_050_664 - 384 - 197 * 384),
    ],
)
def test_parameter_counts_of_the_paper_models(shape, name, count):
    with torch.device("meta"):
        model = build_vit(config(shape), 1000, partial(attention.build, name))
    assert sum(p.numel() for p in model.parameters()) == count
    if name == "softmax":
        gap = {"class_token": False, "global_pool": "avg", "pos_embed": "none"} if shape.endswith("_gap") else {}
        with torch.device("meta"):
            peer = timm.create_model(f"{shape.removesuffix('_gap')}_patch16_224", **gap)
        assert {n: p.shape for n, p in model.state_dict().items()} == {n: p.shape for n, p in peer.state_dict().items()}


def test_the_configs_are_the_papers():
    paper = {"image_size": 224, "patch": 16, "depth": 12, "mlp_ratio": 4.0, "drop_path": 0.1}
    paper |= {"position": "learned", "pool": "class_token", "qk_norm": "none", "gate": "none", "value_residual": 0.0}
    assert asdict(config("deit_tiny")) == {"name": "deit_tiny", "dim": 192, "heads": 3, **paper}
    assert asdict(config("deit_small")) == {"name": "deit_small", "dim": 384, "heads": 6, **paper}
    for size in ("tiny", "small"):
        changed = {"name": f"deit_{size}_gap", "position": "none", "pool": "average"}
        assert asdict(config(f"deit_{size}_gap")) == asdict(config(f"deit_{size}")) | changed
    assert (config("vit_tiny").image_size, config("vit_tiny").patch) == (32, 8)


@pytest.mark.parametrize("name", ["softmax", "fourier"])
@pytest.mark.parametrize("heads", [3, 4])  # the authors' code, and the paper's text: 64 and 48 coordinates per head
def test_both_head_counts_train(name, heads):
    model = small(name, depth=1, image_size=224, patch=16, dim=192, heads=heads)
    loss = model(torch.randn(2, 3, 224, 224)).square().mean()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    (layer,) = layers_of(model)
    assert layer.geometry.head_dim == 192 // heads


# -- timm's stock model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["class_token", "average"])
@pytest.mark.parametrize("position", ["learned", "none"])
@pytest.mark.parametrize("training", [False, True])
def test_softmax_is_stock_deit_exactly(training, position, pool):
    torch.manual_seed(0)
    model = small(position=position, pool=pool).double().train(training)
    for p in model.parameters():  # away from the zeros and ones of the start, which hide a swapped bias or norm
        torch.nn.init.normal_(p, std=0.3)
    images = torch.randn(4, 3, 32, 32).double()
    assert torch.equal(model(images), stock(model).train(training)(images))


def test_without_numbers_stochastic_depth_draws_as_timm_does():
    model = small(drop_path=0.5)
    peer, images = stock(model, drop=0.5).train(), torch.randn(16, 3, 32, 32)
    draw_stochastic_depth(model, torch.zeros(6, 16))
    draw_stochastic_depth(model, None)  # and so after numbers were given
    torch.manual_seed(3)
    expected = peer(images)
    torch.manual_seed(3)
    torch.testing.assert_close(model.train()(images), expected)


@pytest.mark.parametrize("name", ["fourier", "fourier_vector"])
def test_stock_weights_load_all_but_the_radius(name):
    model = small(name)
    incompatible = model.load_state_dict(stock(small()).state_dict(), strict=False)
    assert incompatible.missing_keys == [f"blocks.{i}.attn.radius" for i in range(3)]
    assert incompatible.unexpected_keys == []


def test_initialisation_is_timms():
    """Linear weights N(0, 0.02) cut at +-2, biases 0, positions N(0, 0.02), class token N(0, 1e-6), patches as torch's
    convolution; beside them a stock model, and a radius that keeps its value."""
    torch.manual_seed(0)
    peer = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, num_classes=10)
    theirs = peer.state_dict()
    shape = ViTConfig(name="t", image_size=32, patch=8, dim=192, depth=3, heads=3, mlp_ratio=4.0, drop_path=0.0)
    model = build_vit(shape, 10, partial(attention.build, "fourier", radius=1.25))
    for name, p in model.state_dict().items():
        if name.endswith("radius"):
            assert p == 1.25
        elif name.endswith("bias") and "patch_embed" not in name:
            assert not p.any(), name
        elif "norm" in name:
            assert (p == 1).all(), name
        else:
            assert p.std() == pytest.approx(theirs[name].std().item(), rel=0.25), name
        if p.dim() == 2 and p.numel() > 10_000:
            assert p.std() == pytest.approx(0.02, rel=0.02), name
            assert p.abs().max() > 3.3 * 0.02, f"{name} is not normal"


@pytest.mark.parametrize("classes", [0, 7])
def test_timms_own_tools_work(classes):
    model = small("fourier", classes=classes)
    images = torch.randn(2, 3, 32, 32)
    assert model(images).shape == (2, classes or 48)
    last, maps = model.forward_intermediates(images, indices=[0, 2])
    assert last.shape == (2, 17, 48)
    assert [m.shape for m in maps] == [(2, 48, 4, 4)] * 2
    model.reset_classifier(5)
    assert model(images).shape == (2, 5)


def test_without_positions_and_class_token_the_order_of_patches_does_not_matter():
    """The mean of patches, each of which sees all others alike: exchanged halves of an image give the same logits."""
    model = small(position="none", pool="average").double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    images = torch.randn(3, 3, 32, 32).double()
    torch.testing.assert_close(model(images.roll(16, dims=2)), model(images))
    named = small(position="learned", pool="average").double().eval()
    assert not torch.allclose(named(images.roll(16, dims=2)), named(images))


# -- mechanisms -------------------------------------------------------------------------------------------------------


def test_mechanisms_are_told_where_they_are():
    seen = []

    def recording(geometry: Geometry):
        seen.append(geometry)
        return attention.build("softmax", geometry)

    build_vit(config("deit_tiny"), 10, recording, seed=5)
    shared = {"dim": 192, "heads": 3, "length": 197, "causal": False, "bias": True, "grid": (14, 14), "prefix": 1}
    assert seen == [Geometry(**shared, layer=i, seed=5) for i in range(12)]
    seen.clear()
    build_vit(config("deit_tiny_gap"), 10, recording, seed=5)
    shared |= {"length": 196, "prefix": 0}
    assert seen == [Geometry(**shared, layer=i, seed=5) for i in range(12)]


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("softmax", "fourier", "hybrid", "aft_conv", "image_2d", "fnet", "none")
        else pytest.param(name, marks=pytest.mark.full("the contract has the gradients of each mechanism alone"))
        for name in attention.available(causal=False, grid=True)
    ],
)
def test_every_mechanism_trains(name):
    model = small(name, dim=96)  # 32 heads of aft_conv divide it
    of_layers = ["softmax", "fourier", "softmax"] if name == "hybrid" else [name] * 3
    assert [type(layer) for layer in layers_of(model)] == [attention.mechanism(one) for one in of_layers]
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    for layer in layers_of(model):
        gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert name in ("none", "fnet") or layer.qkv.weight.grad.any()  # fnet has no parameters


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"patch": 7}, "model.image_size=32 must be divisible by model.patch=7"),
        ({"heads": 5}, "model.dim=48 must be divisible by model.heads=5"),
        ({"drop_path": 1.0}, "model.drop_path=1.0: must be at least 0 and less than 1"),
        ({"mlp_ratio": 0.0}, "model.mlp_ratio=0.0: must be more than 0"),
        ({"depth": 0}, "model.depth=0: must be at least 1"),
    ],
)
def test_impossible_shapes_are_refused(values, message):
    with pytest.raises(SetupError) as error:
        small(**{"depth": 2, **values})
    assert message in str(error.value)


# -- stochastic depth -------------------------------------------------------------------------------------------------


def handed(rate: float, uniform: torch.Tensor) -> StochasticDepth:
    """One layer alone, as draw_stochastic_depth treats it; the parameter is there to have a device."""
    holder = torch.nn.Sequential(torch.nn.Linear(1, 1), StochasticDepth(rate))
    draw_stochastic_depth(holder, uniform[None])
    return holder[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.7])
def test_given_timms_mask_it_is_timms_drop_path(rate, dtype):
    x = torch.randn(64, 5, 7).to(dtype)
    torch.manual_seed(1)
    expected = drop_path(x, rate, training=True)
    kept = expected.flatten(1).any(1)
    uniform = torch.where(kept, rate, 0.0)  # a number equal to the rate is kept
    result = handed(rate, uniform)(x)
    assert result.dtype == dtype
    assert torch.equal(result, expected)


def test_expectation_is_the_branch_itself():
    rate, rows = 0.3, 200_000
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(0))
    y = handed(rate, uniform)(torch.ones(rows, 1, 1))
    assert y.mean() == pytest.approx(1.0, abs=4 * (rate / (1 - rate) / rows) ** 0.5)  # four standard errors
    assert sorted(y.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])


def test_it_is_off_in_evaluation():
    model = small(drop_path=0.5)
    images = torch.randn(4, 3, 32, 32)
    expected = model.eval()(images)
    draw_stochastic_depth(model, torch.zeros(6, 4))  # drops whatever may be dropped
    assert torch.equal(model(images), expected)
    assert not torch.equal(model.train()(images), expected)


def test_each_branch_obeys_its_own_row():
    """Rates 0, 0.2, 0.4 in three blocks; the forward pass written out, one image at a time."""
    model, images = small(drop_path=0.4).train(), torch.randn(8, 3, 32, 32)
    uniform = torch.rand(6, 8, generator=torch.Generator().manual_seed(2))
    draw_stochastic_depth(model, uniform)
    logits = model(images)
    dropped = 0
    for b in range(8):
        x = model._pos_embed(model.patch_embed(images[b : b + 1]))
        for layer, (block, rate) in enumerate(zip(model.blocks, (0.0, 0.2, 0.4), strict=True)):
            for branch, part in enumerate(
                (lambda x, o=block: o.attn(o.norm1(x)), lambda x, o=block: o.mlp(o.norm2(x)))
            ):
                if uniform[2 * layer + branch, b] >= rate:
                    x = x + part(x) / (1 - rate)
                else:
                    dropped += 1
        torch.testing.assert_close(logits[b], model.head(model.norm(x)[0, 0]), rtol=1e-4, atol=1e-5)
    assert dropped > 3


def test_how_the_batch_is_divided_does_not_matter():
    model, images = small("fourier", drop_path=0.5).train(), torch.randn(6, 3, 32, 32)
    uniform = torch.rand(6, 6, generator=torch.Generator().manual_seed(4))
    draw_stochastic_depth(model, uniform)
    together = model(images)
    parts = []
    for rows in ([4, 0, 2], [5], [1, 3]):
        draw_stochastic_depth(model, uniform[:, rows])
        parts.append(model(images[rows]))
    torch.testing.assert_close(torch.cat(parts), together[[4, 0, 2, 5, 1, 3]], rtol=1e-4, atol=1e-5)


# -- torch.compile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["softmax", "fourier", pytest.param("gaussian", marks=pytest.mark.full("compiles as softmax does"))]
)
def test_compiled_blocks_share_their_graphs_over_layers_and_steps(name):
    from torch._dynamo.utils import counters

    plain, compiled = small(name, depth=4, drop_path=0.5), small(name, depth=4, drop_path=0.5)
    compiled.load_state_dict(plain.state_dict())
    torch.compiler.reset()
    counters.clear()
    compiled.compile_blocks(backend="aot_eager", fullgraph=name != "fourier")  # its CPU backend is not traced
    graphs = []
    for step in range(3):
        images = torch.randn(5, 3, 32, 32)
        uniform = torch.rand(8, 5, generator=torch.Generator().manual_seed(step))
        for model in (plain, compiled):
            draw_stochastic_depth(model, uniform)
            model.zero_grad()
            model(images).square().mean().backward()
        graphs.append(counters["stats"]["unique_graphs"])
        for (key, p), q in zip(plain.named_parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, msg=key)
    assert len(set(graphs)) == 1, f"recompiled: {graphs}"
    if name != "fourier":
        assert graphs == [1, 1, 1]  # for four layers

"""Released attention beside ours: code is loaded without its CUDA parts, leaks and wrong formulas are found."""

import sys

import pytest
import torch

from outside.cases import Skipped
from outside.elliptical import elliptical_cases
from outside.released import OnCpu, change_before, load_without

SOURCE = """
import fast_kernel
from kernels.fast import Layer, register

@register
class Released(Layer):
    pass

class Other(Layer):
    part = Layer(1, two=2)
"""
ELLIPTICAL = """
import torch
from timm.models.registry import register_model
from torch import nn

class MahalaAttention(nn.Module):
    def __init__(self, dim, num_heads, qkv_bias, over_layers):
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim, bias=qkv_bias), nn.Linear(dim, dim)

    def forward(self, x, _, below):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        m = (v - below).abs().POWER.mean(-2, keepdim=True)
        scores = q * m / m.amax(-1, keepdim=True) @ k.mT / q.shape[-1] ** 0.5
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)), k, v
"""


def test_a_file_is_loaded_without_the_packages_that_are_not_there(tmp_path):
    file = tmp_path / "models.py"
    file.write_text(SOURCE)
    before = set(sys.modules)
    module = load_without(file, "kernels", "fast_kernel")
    assert issubclass(module.Other, type(module.Other.part))
    assert not {name for name in set(sys.modules) - before if name.startswith(("kernels", "fast_kernel"))}
    with pytest.raises(ModuleNotFoundError):
        load_without(file, "kernels")
    with pytest.raises(Skipped, match=r"other\.py is not in this copy"):
        load_without(tmp_path / "other.py")


def test_later_inputs_change_nothing_before_only_in_causal_code():
    x = torch.randn(2, 9, 4)
    assert change_before(lambda x: x.cumsum(1), x, 5) == 0
    assert change_before(lambda x: x.mean(1, keepdim=True).expand_as(x), x, 5) > 0.01


def test_code_that_names_a_gpu_runs_on_the_cpu():
    with OnCpu():
        place = f"cuda:{torch.cuda.current_device()}"
        assert torch.ones(2, device=place).to(device=torch.device(place)).device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.cuda.current_device()


@pytest.mark.parametrize(("power", "same"), [("pow(1)", True), ("pow(2)", False)])
def test_a_layer_is_equal_to_ours_or_found_to_differ(tmp_path, power, same):
    images, text = tmp_path / "ImageNet/models.py", tmp_path / "Wikitext/lmtool-fwms/src/mem_transformer.py"
    for file, source in ((images, ELLIPTICAL.replace("POWER", power)), (text, "")):
        file.parent.mkdir(parents=True)
        file.write_text(source)
    name, compare = next(elliptical_cases(tmp_path))
    assert name == "MahalaAttention, images: elliptical"
    if same:
        compare()
    else:
        with pytest.raises(AssertionError, match="not close"):
            compare()

"""Write a new attention that passes its tests, as a template: python scripts/new_attention.py my_kernel

It has three files: the class, its yaml, and a test of its formula. docs/extend.md has the next steps.
"""

import keyword
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.printing import echo
from fourierformer.provenance import REPOSITORY
from fourierformer.runs.console_io import Parser, exit_on_user_error

CLASS = '''\
"""Attention with a Cauchy kernel: weights that fall with the distance between query and key, but slowly."""

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32, visible_keys
from fourierformer.errors import check_range


@register("NAME", "a Cauchy kernel of query and key: far keys keep some weight")
class CLASSNAME(Attention):
    """w_ij = 1 / (1 + |q_i - k_j|^2 / width), divided by its sum over the keys that query i sees.

    O(N^2 D) time, N^2 numbers of memory per head.
    """

    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N² C", "2 N C", "ours"

    def __init__(self, geometry: Geometry, *, width: float = 4.0):
        super().__init__(geometry)
        check_range("attention.width", width, 0, above_low=True)
        self.width = width

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        weights = self._weights(q, k, causal=self.geometry.causal and not cross, keep=keep)
        return (weights @ v.to(weights.dtype)).to(v.dtype)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        return self._weights(q, k, causal=self.geometry.causal)

    def _weights(self, q: Tensor, k: Tensor, *, causal: bool, keep: Keep = None) -> Tensor:
        """(B, H, N, M), 0 for keys that a query does not see, in float32 at least."""
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            squares = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :] - 2 * q @ k.mT
            weights = 1 / (1 + squares.clamp_min(0) / self.width)
            weights = weights.masked_fill(~visible_keys(q, k, causal=causal, keep=keep), 0.0)
            total = weights.sum(-1, keepdim=True)
            return weights / total.masked_fill(total == 0, 1.0)
'''

YAML = """\
# fourierformer/attention/mechanisms/NAME.py
# A Cauchy kernel: w_ij = 1 / (1 + |q_i - k_j|^2 / width).
name: NAME
width: 4.0  # the squared distance at which a weight has fallen to a half
"""

TEST = '''\
"""NAME is its formula, written with a plain loop over queries."""

import torch

from fourierformer import attention
from fourierformer.attention import Geometry


def test_each_query_averages_its_past_by_the_formula():
    layer = attention.build("NAME", Geometry(dim=8, heads=2, length=9, causal=True), width=2.0)
    q, k, v = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = layer.mix(q, k, v, v)
    for i in range(9):
        keys, values = k[:, :, : i + 1], v[:, :, : i + 1]
        weights = 1 / (1 + (q[:, :, i : i + 1] - keys).square().sum(-1, keepdim=True) / 2.0)
        expected = (weights * values).sum(2) / weights.sum(2)
        torch.testing.assert_close(mixed[:, :, i], expected, rtol=1e-10, atol=1e-10)
'''

TEMPLATES = {
    "fourierformer/attention/mechanisms/NAME.py": CLASS,
    "configs/attention/NAME.yaml": YAML,
    "tests/attention/test_NAME.py": TEST,
}


def files(name: str) -> dict[str, str]:
    """Path -> text of the three files of an attention called `name`."""
    class_name = "".join(word.capitalize() for word in name.split("_"))
    return {
        path.replace("NAME", name): text.replace("CLASSNAME", class_name).replace("NAME", name)
        for path, text in TEMPLATES.items()
    }


def write(name: str, root: Path) -> list[Path]:
    """Write the files below `root`. SetupError, and no file, for a name that is taken or impossible."""
    from fourierformer.attention import available, check_name

    check_name(name)
    if keyword.iskeyword(name):  # its file could not be imported
        raise SetupError(f"'{name}' cannot name a file of Python: write 'my_{name}', say")
    if name in available():
        raise SetupError(f"attention '{name}' exists already: write another name")
    texts = {root / path: text for path, text in files(name).items()}
    for path in texts:
        if path.exists():
            raise SetupError(f"{path.relative_to(root)} exists already: write another name")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("name", help="lower-case letters, digits and _, as in my_kernel")
    name = parser.parse_args().name
    with exit_on_user_error():
        for path in write(name, REPOSITORY):
            echo(path.relative_to(REPOSITORY))
        echo(f"test it: python -m pytest tests/attention -k {name}")


if __name__ == "__main__":
    main()

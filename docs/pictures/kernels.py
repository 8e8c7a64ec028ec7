"""Draw the weights that one query gives to the same keys under several kernels: python docs/pictures/kernels.py"""

from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from fourierformer.attention import Geometry, build

KEYS = 30
QUERY = (0.6, 0.3)
PANELS: dict[str, dict[str, object]] = {
    "softmax": {},
    "gaussian": {},
    "fourier_matched": {},
    "fourier": {"radius": 2.0},
    "fourier_disc": {"radius": 2.0},
    "softmax1": {},
    "epanechnikov": {},
    "sparsemax": {},
    "mom_fourier": {"blocks": 3},
    "local_linear": {},
    "kernel_ridge": {},
    "sigmoid": {},
}


def main() -> None:
    keys = 1.3 * torch.randn(KEYS, 2, generator=torch.Generator().manual_seed(3))
    query = torch.tensor([QUERY])
    matplotlib.rcParams |= {"svg.hashsalt": "kernels", "font.size": 9}
    figure, axes = plt.subplots(3, 4, figsize=(9, 7.2), sharex=True, sharey=True, layout="constrained")
    for axis, (name, knobs) in zip(axes.flat, PANELS.items(), strict=True):
        torch.manual_seed(0)
        layer = build(name, Geometry(dim=2, heads=1, length=KEYS, causal=False), **knobs).eval()
        with torch.no_grad():
            weights = layer.maps(query[None, None], keys[None, None])[0, 0, 0]
        colours = ["#0072b2" if weight >= 0 else "#d55e00" for weight in weights]
        axis.scatter(*keys.T, s=700 * weights.abs(), c=colours, alpha=0.6, linewidth=0)
        axis.scatter(*keys.T, s=3, c="#222222", linewidth=0)
        axis.scatter(*QUERY, marker="*", s=70, c="#222222")
        settings = "".join(f" {knob}={value:g}" for knob, value in knobs.items())
        axis.set(title=f"{name}{settings}\nsum {weights.sum():.2f}", xticks=[], yticks=[], aspect="equal")
    for suffix, metadata in (("svg", {"Date": None}), ("png", None)):
        figure.savefig(Path(__file__).with_suffix(f".{suffix}"), dpi=110, metadata=metadata)


if __name__ == "__main__":
    main()

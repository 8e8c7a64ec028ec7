"""In-context regression by attention alone: queries are new points, keys the points of the context, values their y."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fourierformer.attention import Attention, Geometry
from fourierformer.data.regression.sequences import Points
from fourierformer.errors import SetupError
from fourierformer.models.config import RegressionConfig


class Estimator(nn.Module):
    """One mechanism as an estimator: sum_j w(q, k_j) y_j with q = s W_q x and k_j = s W_k x_j, s learned, and W_q, W_k
    learned or the identity."""

    def __init__(self, config: RegressionConfig, dimension: int, attention: Attention):
        super().__init__()
        refusal = attention.cross_ok
        if refusal is True and type(attention).project is not Attention.project:
            refusal = "it has projections of its own"
        if refusal is not True:
            raise SetupError(
                f"{type(attention).__name__} attention cannot estimate from given queries, keys and values: {refusal}. "
                f"attention=softmax, gaussian and fourier can"
            )
        del attention.qkv, attention.proj  # the features are not mixed with the values, nor the estimates afterwards
        self.attention, self.normalise = attention, config.normalise
        self.log_scale = nn.Parameter(torch.zeros(()))
        learned = config.projections == "learned"
        self.of_queries, self.of_keys = (nn.Parameter(torch.eye(dimension)) if learned else None for _ in range(2))

    def forward(self, queries: Tensor, features: Tensor, values: Tensor) -> Tensor:
        """(B, Q, d), (B, N, d), (B, N) -> (B, Q)"""
        q, k = self._projected(queries, self.of_queries), self._projected(features, self.of_keys)
        v = torch.nn.functional.pad(values[..., None], (0, q.shape[-1] - 1))
        return self.attention.mix(q[:, None], k[:, None], v[:, None], features, cross=True)[:, 0, :, 0]

    def _projected(self, x: Tensor, weight: Tensor | None) -> Tensor:
        x = x if weight is None else x @ weight.T
        if self.normalise:
            x = math.sqrt(x.shape[-1]) * nn.functional.normalize(x, dim=-1)
        return self.log_scale.exp() * x


class RegressionModel(nn.Module):
    """Each layer estimates the residuals of the layers before it, and the sum of all is the estimate (boosting with
    the L2 loss, Buhlmann and Yu 2003). One layer is the estimator itself."""

    def __init__(
        self,
        config: RegressionConfig,
        dimension: int,
        context: int,
        attention: Callable[[Geometry], Attention],
        *,
        seed: int = 0,
    ):
        super().__init__()
        self.config = config
        geometries = (config.geometry(dimension, context, layer, seed) for layer in range(config.layers))
        self.layers = nn.ModuleList(Estimator(config, dimension, attention(geometry)) for geometry in geometries)

    def forward(self, batch: Points) -> Tensor:
        """Estimates at the queries: (B, Q)."""
        residuals, estimates = batch.values, torch.zeros_like(batch.exact)
        for number, layer in enumerate(self.layers, start=1):
            estimates = estimates + layer(batch.queries, batch.features, residuals)
            if number < len(self.layers):
                residuals = residuals - layer(batch.features, batch.features, residuals)
        return estimates

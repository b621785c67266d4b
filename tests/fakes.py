"""A prediction whose mixture is given outright, with the interface that scores and plots use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import norm
from torch import Tensor

from pyro_deeponet import mixture


@dataclass
class FakePrediction:
    """Components `mu, sigma (S, n, q)`, handed out in blocks of unequal size."""

    mu: Tensor
    sigma: Tensor
    mask: Tensor | None = None
    numpy: bool = False
    block: tuple[int, int] = (3, 4)

    def _out(self, tensor):
        return tensor.numpy() if self.numpy else tensor

    @property
    def mean(self):
        return self._out(self.mu.mean(0))

    @property
    def epistemic_std(self):
        return self._out(self.mu.std(0, correction=0))

    @property
    def aleatoric_std(self):
        return self._out(self.sigma.square().mean(0).sqrt())

    @property
    def std(self):
        total = self.mu.var(0, correction=0) + self.sigma.square().mean(0)
        return self._out(total.sqrt())

    def interval(self, level=0.95, kind="predictive", method="gaussian"):
        if method == "mixture":
            tiny = torch.zeros_like(self.sigma)
            sigma = self.sigma if kind == "predictive" else tiny
            ends = (0.5 - level / 2, 0.5 + level / 2)
            return tuple(self._out(mixture.quantile(self.mu, sigma, q)) for q in ends)
        half = norm.ppf(0.5 + level / 2) * (
            self.std if kind == "predictive" else self.epistemic_std
        )
        return self.mean - half, self.mean + half

    def cdf(self, s):
        return self._out(mixture.cdf(self.mu, self.sigma, torch.as_tensor(s).to(self.mu)))

    def log_prob(self, s):
        return self._out(mixture.log_prob(self.mu, self.sigma, torch.as_tensor(s).to(self.mu)))

    def components(self):
        (n, q), (a, b) = self.mu.shape[1:], self.block
        for i in range(0, n, a):
            for j in range(0, q, b):
                where = (slice(i, min(i + a, n)), slice(j, min(j + b, q)))
                yield where, self.mu[:, where[0], where[1]], self.sigma[:, where[0], where[1]]

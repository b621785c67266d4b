"""The evidence lower bound of a DeepONet, with all weights drawn at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from pyro_deeponet.divergence import flat_divergence
from pyro_deeponet.guides import AutoMeanField, flat_sampler, site_names, unflatten
from pyro_deeponet.model import DeepONet, likelihood_scale

__all__ = ["DeepONetELBO", "Temper", "gaussian_log_likelihood", "unflatten"]


#: Numbers (particles x functions x points) that a step evaluates at once.
CHUNK = 2_000_000


class Temper(Messenger):
    """Scales the log densities of all latent sites, and so the KL divergence, by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.factor


class DeepONetELBO(Trace_ELBO):
    r"""`Trace_ELBO` for a `DeepONet`: the same value and gradients, several times faster.

    .. math:: L = -\frac1S \sum_{i=1}^S \Big[ \frac{n}{b} \log p(s \mid \theta_i)
        + \beta \big( \log p(\theta_i) - \log q(\theta_i) \big) \Big], \quad \theta_i \sim q

    Where the guide is one of Pyro's `AutoNormal`, `AutoDelta` or `AutoContinuous` family and the
    priors are plain distributions, all weights of all particles are drawn as one matrix and the
    network is evaluated without a Pyro message per site. Otherwise this is Pyro's own `Trace_ELBO`
    with vectorised particles. With the guide `"meanfield"` it is `TraceMeanField_ELBO` in both
    cases: the divergence is in closed form for every site that has one. It takes the arguments of
    `DeepONet.forward`.

    `SVI` and other effect handlers learn of parameters and sites by Pyro's messages. Within them,
    and with an autoguide that has not been called yet, this is Pyro's own `Trace_ELBO` too: right,
    but no faster. A torch optimiser, as in the example, gets the speed.

    Args:
        num_particles: Number of samples `S`.
        kl_weight: The factor :math:`\beta`; 1 is the ELBO, less a tempered posterior.

    Attributes:
        terms: Expected log-likelihood and KL divergence of the last evaluation.

    Examples:
        >>> import pyro
        >>> from pyro.infer.autoguide import AutoNormal
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
        >>> u, y, s = torch.zeros(3, 4), torch.zeros(5, 1), torch.zeros(3, 5)
        >>> guide = AutoNormal(model)
        >>> with pyro.get_param_store().scope():
        ...     start = guide(u, y, s)        # after a first call it has its parameters
        >>> elbo, adam = DeepONetELBO(num_particles=7), torch.optim.Adam(guide.parameters())
        >>> loss = elbo.loss_and_grads(model, guide, u, y, s)
        >>> loss == elbo.terms[1] - elbo.terms[0]
        True
        >>> adam.step()
    """

    def __init__(self, num_particles: int = 25, kl_weight: float = 1.0) -> None:
        super().__init__(num_particles=num_particles, vectorize_particles=True, max_plate_nesting=2)
        self.kl_weight = kl_weight
        self.terms: tuple[float, float] = (math.nan, math.nan)
        self._plan: _Plan | None = None
        self._log_likelihood: Any = math.nan
        self._stock: type[Trace_ELBO] = Trace_ELBO

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a tensor that can be differentiated."""
        plan = self._plan_for(model, guide)
        if plan is None:
            self._stock = TraceMeanField_ELBO if isinstance(guide, AutoMeanField) else Trace_ELBO
            with Temper(self.kl_weight):
                loss = super().differentiable_loss(model, guide, *args, **kwargs)
            fitted = self._log_likelihood.item()
            self.terms = (fitted, (loss.item() + fitted) / (self.kl_weight or math.nan))
            return loss
        expected, divergence = plan.terms(self.num_particles, *args, **kwargs)
        self.terms = (expected.item(), divergence.item())
        return self.kl_weight * divergence - expected

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Iterator[Any]:
        for model_trace, guide_trace in super()._get_traces(model, guide, args, kwargs):
            self._log_likelihood = model_trace.nodes["s"]["log_prob_sum"] / self.num_particles
            yield model_trace, guide_trace

    def _differentiable_loss_particle(self, model_trace: Any, guide_trace: Any) -> Any:
        return self._stock._differentiable_loss_particle(self, model_trace, guide_trace)

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss as a number."""
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss as a number, its gradients added to those of the parameters."""
        plan = self._plan_for(model, guide)
        if plan is not None and plan.draw is not None:
            self.terms = plan.accumulate(self.num_particles, self.kl_weight, *args, **kwargs)
            return self.kl_weight * self.terms[1] - self.terms[0]
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()
        return loss.item()

    def _plan_for(self, model: Any, guide: Any) -> _Plan | None:
        if am_i_wrapped() or (isinstance(guide, AutoGuide) and guide.prototype_trace is None):
            return None
        if self._plan is None or not self._plan.fits(model, guide):
            self._plan = _Plan.make(model, guide)
        return self._plan


@dataclass
class _Plan:
    """How to evaluate one model with one guide without Pyro's messages."""

    model: DeepONet
    guide: Any
    draw: Callable[[int], tuple[Tensor, Tensor]] | None  # S -> weights (S, P), their divergence
    shapes: dict[str, torch.Size]
    like: Tensor

    @classmethod
    def make(cls, model: Any, guide: Any) -> _Plan | None:
        if not isinstance(model, DeepONet):
            return None
        sampled = model.sampled_shapes()
        if not sampled:
            return cls(model, guide, None, {}, model.head.like)
        sampler = flat_sampler(guide, sampled)
        if sampler is None:
            return None
        shapes = {name: sampled[name] for name in site_names(guide)}
        divergence = flat_divergence(model, guide, shapes)
        if divergence is None:
            return None

        def draw(particles: int) -> tuple[Tensor, Tensor]:
            flat, log_q = sampler(particles)
            return flat, divergence(flat, log_q)

        return cls(model, guide, draw, shapes, model.head.like)

    def fits(self, model: Any, guide: Any) -> bool:
        same = self.model is model and self.guide is guide
        return same and self.like.dtype == model.head.like.dtype

    def terms(
        self,
        particles: int,
        u: Tensor,
        y: Tensor,
        s: Tensor,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        size: int | tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Expected log-likelihood and KL divergence, estimated from `particles` draws."""
        scale = likelihood_scale(size, s)
        weights = self.model.plain_weights()
        if self.draw is None:
            total = gaussian_log_likelihood(self.model, weights, u, y, s, index, mask)
            return total * scale, torch.zeros_like(total)
        flat, divergence = self.draw(particles)
        weights |= unflatten(flat, self.shapes)
        total = gaussian_log_likelihood(self.model, weights, u, y, s, index, mask)
        return total * (scale / particles), divergence

    def accumulate(
        self,
        particles: int,
        kl_weight: float,
        u: Tensor,
        y: Tensor,
        s: Tensor,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        size: int | tuple[int, int] | None = None,
    ) -> tuple[float, float]:
        """What `terms` gives, with the gradients of the loss added to those of the parameters.

        The functions are taken some at a time, with the same weights: the gradients add up, and
        what a step holds stays in the cache however large the batch.
        """
        assert self.draw is not None
        scale = likelihood_scale(size, s) / particles
        flat, divergence = self.draw(particles)
        drawn = flat.detach().requires_grad_()
        q, m = len(y), s.shape[1]
        each = m if index is None else min(q, m * self.model.branch_sizes[-1])
        rows = max(1, CHUNK // (particles * each * s[0, 0].numel()))
        if index is not None:  # so many that the trunk is not evaluated at a location too often
            rows = max(rows, math.ceil(q / m))
        plain, expected = self.model.plain_weights(), 0.0
        for i in range(0, len(u), rows):
            part = slice(i, i + rows)
            weights = plain | unflatten(drawn, self.shapes)
            likelihood = scale * gaussian_log_likelihood(
                self.model, weights, u[part], y, s[part],
                None if index is None else index[part], None if mask is None else mask[part],
            )  # fmt: skip
            (-likelihood).backward()
            expected += likelihood.item()
        torch.autograd.backward([flat, kl_weight * divergence], [drawn.grad, None])
        return expected, divergence.item()


def gaussian_log_likelihood(
    model: DeepONet,
    weights: dict[str, Tensor],
    u: Tensor,
    y: Tensor,
    s: Tensor,
    index: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Sum of :math:`\log \mathcal N(s; \mu, \sigma^2)` over points, functions and weight samples.

    It is computed in network units, :math:`z = s / \text{unit}`, whose density is `unit` times that
    of `s`.
    """
    mu, delta = model.nodes(weights, u, y, index)
    unit = model.scaling.s.scale
    sigma = model.likelihood.sigma(delta, unit)
    each = ((model.scaling.s(s) - mu) / sigma).square() * 0.5 + sigma.log()
    points: Any = s.shape[0] * s.shape[1]  # of each output
    if mask is not None:
        each = torch.where(mask, each, 0.0)
        points = mask.sum((0, 1))
    constant = points * (unit.log() + 0.5 * math.log(2 * math.pi))
    return -each.sum() - each.numel() // s.numel() * constant.sum()

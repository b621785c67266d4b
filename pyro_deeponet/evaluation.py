"""The network under many weight samples at many points, in bounded memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_deeponet.model import DeepONet
from pyro_deeponet.threads import Scratch, side_by_side

__all__ = ["BLOCK", "Network", "Where"]

Where = tuple[slice, slice]
Features = tuple[Tensor, Tensor, Tensor | None]

#: Numbers of one block (samples x functions x locations): small enough to stay in the cache.
BLOCK = 3 * 2**18
#: Samples that moments take at once: few, so that tiles of functions x locations are large.
GROUP = 10
#: Locations whose features are used again while they are in the cache.
PANEL = 640
#: Seconds after which a progress bar is shown.
PATIENCE = 2.0


@dataclass(frozen=True)
class Network:
    """The network with sampled weights at some points, evaluated block by block.

    Args:
        model: The model.
        weights: Samples by name, each `(S, ...)`.
        u: Functions `(n, k)`.
        y: Locations `(q, d)`.
        index: Which locations belong to which function, `(n, m)`.
        factor: Spread of the mixture about its mean, times that of the samples; see `calibrate`.
        max_memory: Bytes that the evaluation may hold beside its inputs and results.
        progress: Whether work that takes long shows a progress bar.
        output: Which of several outputs to show; all of them unless told.
    """

    model: DeepONet
    weights: Mapping[str, Tensor]
    u: Tensor
    y: Tensor
    index: Tensor | None
    factor: float
    max_memory: int
    progress: bool = True
    output: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Functions and points, and the number of outputs where several are shown."""
        several = self.model.outputs is not None and self.output is None
        return (*self._points, self.model.head.count) if several else self._points

    @property
    def _points(self) -> tuple[int, int]:
        return self.u.shape[0], (self.y.shape[0] if self.index is None else self.index.shape[1])

    @property
    def samples(self) -> int:
        """Number of weight samples; weights that are the same in all of them may be held once."""
        return max(w.shape[0] for w in self.weights.values())

    @torch.no_grad()
    def blocks(self, describe: str) -> Iterator[tuple[Where, Tensor, Tensor]]:
        """Mean and standard deviation of all components, for one block of points after another.

        Args:
            describe: What the progress bar says, when there is one.

        Yields:
            The block's place `(functions, points)`, and `mu` and `sigma`, `(S, a, b)`, or
            `(S, a, b, c)` for several outputs, which the caller may overwrite.
        """
        for where, features in self._shown(self._tiles(self.samples), describe):
            nodes = self.model.head.combine(self.weights, *features)
            mu, sigma = self.model.to_physical(*nodes)
            if self.output is not None:
                mu, sigma = mu[..., self.output], sigma[..., self.output]
            if self.factor != 1.0:
                mu, sigma = torch.lerp(mu.mean(0), mu, self.factor), sigma * self.factor
            yield where, mu, sigma

    @torch.no_grad()
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and epistemic and aleatoric standard deviation of the mixture, of `shape` each.

        The moments are taken in network units, and only they are brought to physical ones.
        """
        units, groups, scratch = self.model.scaling.s, self._groups(), Scratch()
        mean, epistemic, aleatoric = (self.u.new_empty(self.shape) for _ in range(3))

        def work(tile: tuple[Where, Features]) -> None:
            where, features = tile
            centre, *variances = self._moments(groups, features, scratch)
            mean[where] = units.inverse(centre)
            for std, variance in zip((epistemic, aleatoric), variances, strict=True):
                std[where] = variance.sqrt_().mul_(units.scale * self.factor)

        tiles = self._shown(side_by_side(work, self._tiles(GROUP)), "predicting")
        deque(tiles, maxlen=0)
        return mean, epistemic, aleatoric

    def _groups(self) -> list[tuple[slice, dict[str, Tensor]]]:
        """Groups of samples with their head, whose second node is `delta / log(2)` (`sigma_`)."""
        w, c = (self.weights[name].clone() for name in ("head.weight", "head.bias"))
        w[..., self.model.head.count :, :] /= math.log(2)
        c[..., self.model.head.count :] /= math.log(2)
        some = [slice(i, min(i + GROUP, self.samples)) for i in range(0, self.samples, GROUP)]
        return [(g, {"head.weight": _pick(w, g), "head.bias": _pick(c, g)}) for g in some]

    def _moments(
        self, groups: list[tuple[slice, dict[str, Tensor]]], features: Features, scratch: Scratch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`mixture.mean_and_variances` of one block, in network units.

        It is written anew for speed: some samples at a time, in two pieces of memory that stay in
        the cache and are overwritten. The mean over the first samples serves as the origin, so that
        the sum of squares has no large numbers to cancel.
        """
        b, t, index = features
        points = b.shape[1], t.shape[1] if index is None else index.shape[1]
        origin, shift, squares, noise = b.new_zeros(4, self.model.head.count, *points)
        units = self.model.scaling.s.scale.expand(self.model.head.count)
        for i, (group, head) in enumerate(groups):
            some = _pick(b, group), _pick(t, group)
            samples = group.stop - group.start
            whole = all(x.shape[0] == samples for x in (*some, *head.values()))
            memory = scratch(2, (samples, *points), b) if whole else (None, None)
            nodes = self.model.head.each_node(head, *some, index, memory)
            for j, unit in enumerate(units):
                mu = next(nodes)
                if i == 0:
                    origin[j] = mu.mean(0)
                shift[j] += _sum(mu.sub_(origin[j]))
                squares[j] += _sum(mu.square_())
                bits = next(nodes) if self.model.head.nodes > 1 else None
                sigma = self.model.likelihood.sigma_(bits, unit, memory[1])
                fits = bits is not None and bits.shape == sigma.shape
                square = torch.mul(sigma, sigma, out=bits if fits else None)
                noise[j] += _sum(square) if fits else square * samples
        for total in (shift, squares, noise):
            total /= self.samples
        moments = origin + shift, (squares - shift.square()).clamp_(min=0), noise
        several = self.model.outputs is not None
        mean, epistemic, aleatoric = (x.movedim(0, -1) if several else x[0] for x in moments)
        return mean, epistemic, aleatoric

    def _tiles(self, at_once: int) -> Iterator[tuple[Where, Features]]:
        """What `model.head.combine` needs for one block after another.

        Args:
            at_once: Samples that are combined at once.
        """
        budget = self._budget(at_once)
        return self._grid(*budget) if self.index is None else self._indexed(*budget, self.index)

    def _shown(
        self, tiles: Iterator[tuple[Where, Features]], describe: str
    ) -> Iterator[tuple[Where, Features]]:
        """The same tiles, with a progress bar where they take long."""
        n, m = self._points
        with tqdm(
            total=n * m, desc=describe, delay=PATIENCE, unit="pt", unit_scale=True,
            disable=not self.progress,
        ) as bar:  # fmt: skip
            for where, features in tiles:
                yield where, features
                bar.update(math.prod(place.stop - place.start for place in where))

    def _grid(self, features: int, numbers: int) -> Iterator[tuple[Where, Features]]:
        """Tiles of functions x locations; the features of many are made at once."""
        n, q = self._points
        rows, columns = min(n, features), min(q, features, PANEL)
        # Wide tiles, of whole vector registers: for the product, and for long rows in the results.
        b_size = _evenly(columns, math.isqrt(3 * numbers))
        a_size = min(rows, max(1, numbers // b_size))
        a_size -= a_size % 16 if a_size > 16 else 0
        t = self._features(self.model.trunk_features, self.y[:columns])
        for i in range(0, n, rows):
            b = self._features(self.model.branch_features, self.u[i : i + rows])
            for j in range(0, q, columns):
                if columns < q:
                    t = self._features(self.model.trunk_features, self.y[j : j + columns])
                for r in range(0, b.shape[1], a_size):
                    for c in range(0, t.shape[1], b_size):
                        tile = b[:, r : r + a_size], t[:, c : c + b_size]
                        where = _block(i + r, tile[0]), _block(j + c, tile[1])
                        yield where, (*tile, None)

    def _indexed(
        self, features: int, numbers: int, index: Tensor
    ) -> Iterator[tuple[Where, Features]]:
        """Groups of functions with their points; the features of a small grid are made once."""
        n, m = self._points
        columns = min(m, features, numbers)
        width = self.model.branch_sizes[-1]
        picked = min(len(self.y), 2 * columns * width)  # numbers a function, see contract
        rows = max(1, min(features // columns, numbers // picked))
        shared = len(self.y) <= features
        t = self._features(self.model.trunk_features, self.y if shared else self.y[:1])
        for i in range(0, n, rows):
            b = self._features(self.model.branch_features, self.u[i : i + rows])
            for j in range(0, m, columns):
                part = index[i : i + rows, j : j + columns]
                where = slice(i, i + part.shape[0]), slice(j, j + part.shape[1])
                if not shared:
                    used, part = torch.unique(part, return_inverse=True)
                    t = self._features(self.model.trunk_features, self.y[used])
                yield where, (b, t, part)

    def _features(self, net: Callable[..., Tensor], x: Tensor) -> Tensor:
        """What a net makes of functions or locations, `(S, rows, p)`, in blocks of rows."""
        widest = max(*self.model.branch_sizes, *self.model.trunk_sizes)
        limit = min(BLOCK, self.max_memory // (16 * x.element_size()))
        parts = x.split(max(1, limit // (self.samples * widest)))
        first = net(self.weights, parts[0])
        if len(parts) == 1:
            return first
        out = first.new_empty(first.shape[0], len(x), first.shape[2])
        start = 0
        for part in parts:
            out[:, start : start + len(part)] = net(self.weights, part) if start else first
            start += len(part)
        return out

    def _budget(self, at_once: int) -> tuple[int, int]:
        """How many functions' or locations' features, and how many points, to hold at once."""
        size, at_once = self.samples * self.u.element_size(), min(at_once, self.samples)
        # A quarter of the memory each for the features of either net, for what comes before
        # them, and for the block and the handful of temporaries that are made of it.
        features = self.max_memory // (4 * size * self.model.branch_sizes[-1])
        each = at_once * self.model.head.count  # numbers of a point
        numbers = min(BLOCK // each, self.max_memory // (4 * 6 * each * self.u.element_size()))
        return max(1, features), max(1, numbers)


def _pick(x: Tensor, group: slice) -> Tensor:
    """Some samples of `(S, ...)`; what all of them share is `(1, ...)`."""
    return x if x.shape[0] == 1 else x[group]


def _sum(x: Tensor) -> Tensor:
    """Sum over samples `(S, a, b)`, as a product, which takes half the time of `x.sum(0)`."""
    return (x.new_ones(1, x.shape[0]) @ x.flatten(1)).view(x.shape[1:])


def _evenly(total: int, limit: int) -> int:
    """Size of the parts, at most `limit`, of which `total` is made."""
    return math.ceil(total / math.ceil(total / limit))


def _block(start: int, features: Tensor) -> slice:
    return slice(start, start + features.shape[1])

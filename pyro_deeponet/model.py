"""The DeepONet as a probabilistic program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_deeponet.data import OperatorData
from pyro_deeponet.layers import ACTIVATIONS, MLP, Activation, Linear, prior_of
from pyro_deeponet.likelihoods import Heteroscedastic, Likelihood
from pyro_deeponet.priors import Normal, Prior
from pyro_deeponet.scaling import Scaling

__all__ = ["DeepONet", "contract", "whole_size"]

HEADS = ("dot", "features")
SCALINGS = ("standard", "minmax")


class DeepONet(PyroModule):
    r"""A Bayesian DeepONet: :math:`s \sim \mathcal N(\mu, \sigma^2)`, with a prior on every weight.

    A branch net reads the input function at its sensors, :math:`b = B(u)`, a trunk net a location,
    :math:`t = T(y)`, both of the same width. The head makes of them the output nodes
    :math:`\mu` and :math:`\delta`, and the likelihood says what :math:`\sigma` is, by default
    :math:`\sigma = \log(1 + e^\delta)`.

    It is an ordinary Pyro model. Its sites are `branch.<i>.weight`, `branch.<i>.bias`, the same for
    `trunk`, `head.weight`, `head.bias`, and the observation `s` in the plates `functions` (dim -2)
    and `points` (dim -1). Inputs and outputs are in physical units.

    Args:
        sensors: Number of sensors `k` of an input function.
        coordinates: Number of coordinates `d` of a location.
        branch: Widths of the branch net's layers.
        trunk: Widths of the trunk net's layers; the last is that of the branch.
        activation: A name (`"relu"`, `"tanh"`, `"gelu"`, `"silu"`, `"sigmoid"`, `"sine"`,
            `"identity"`) or a callable on tensors.
        final_activation: Whether both nets end with the activation, as in the paper's appendix.
        head: `"dot"`: the scalar product of `b` and `t` goes to the linear output nodes, as in the
            paper. `"features"`: their elementwise product does, a weight a feature.
        prior: Prior of every weight and bias, see `pyro_deeponet.priors`. `None`: plain parameters,
            the deterministic DeepONet. A prior that gives `None` for some weights leaves those
            plain parameters.
        likelihood: See `pyro_deeponet.likelihoods`; `Heteroscedastic()` unless told.
        scaling: A `Scaling`, or `None` for none. `"standard"` and `"minmax"` are fitted to data,
            by `for_data`.

    Examples:
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(8, 8), trunk=(8, 8))
        >>> model(torch.zeros(3, 4), torch.zeros(5, 1)).shape
        torch.Size([3, 5])
        >>> model
        DeepONet(4 sensors, 1 coordinate, branch 8-8, trunk 8-8, relu, head dot, 204 weights)
    """

    def __init__(
        self,
        sensors: int,
        coordinates: int,
        branch: Sequence[int] = (30, 30, 30),
        trunk: Sequence[int] = (30, 30, 30),
        activation: str | Activation = "relu",
        final_activation: bool = False,
        head: str = "dot",
        prior: Prior | None = Normal(0.0, 1.0),  # noqa: B008 - immutable
        likelihood: Likelihood | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(sensors, coordinates, branch, trunk)
        if head not in HEADS:
            raise ValueError(f"head is {head!r}, expected one of {', '.join(map(repr, HEADS))}")
        if isinstance(scaling, str):
            raise ValueError(
                f"scaling {scaling!r} is fitted to data: call DeepONet.for_data(train, "
                f"scaling={scaling!r}), or pass a pyro_deeponet.scaling.Scaling"
            )
        self.sensors, self.coordinates = sensors, coordinates
        self.branch_sizes, self.trunk_sizes = tuple(branch), tuple(trunk)
        self.activation, self.final_activation, self.head_kind = activation, final_activation, head
        self.prior = prior
        self.likelihood = Heteroscedastic() if likelihood is None else likelihood
        self.scaling = Scaling.identity(sensors, coordinates) if scaling is None else scaling
        act = _activation(activation)
        self.branch = MLP((sensors, *branch), prior, act, final_activation, "branch")
        self.trunk = MLP((coordinates, *trunk), prior, act, final_activation, "trunk")
        inputs = 1 if head == "dot" else branch[-1]
        self.head = Linear(inputs, self.likelihood.nodes, prior, "head")
        self.shapes = self.branch.shapes | self.trunk.shapes | self.head.shapes
        self.set_parameters(self.start(seed=0))

    @classmethod
    def for_data(
        cls, data: OperatorData, *, scaling: str | Scaling | None = "standard", **kwargs: Any
    ) -> DeepONet:
        """A model for this data: its number of sensors and coordinates, and its scaling.

        Args:
            data: Training data.
            scaling: `"standard"` (z-scores), `"minmax"` (zero to one), `None` or a `Scaling`.
            **kwargs: As `DeepONet` takes them.

        Examples:
            >>> data = OperatorData(u=[[0.0, 1.0], [1.0, 0.0]], y=[[0.5]], s=[[100.0], [300.0]])
            >>> model = DeepONet.for_data(data)
            >>> model.scaling.s.shift, model.scaling.s.scale
            (tensor(200.), tensor(100.))
        """
        if isinstance(scaling, str) and scaling not in SCALINGS:
            names = ", ".join(map(repr, SCALINGS))
            raise ValueError(f"scaling is {scaling!r}, expected {names}, None or a Scaling")
        maps = getattr(Scaling, scaling)(data) if isinstance(scaling, str) else scaling
        return cls(data.u.shape[1], data.y.shape[1], scaling=maps, **kwargs)

    def weights(self) -> dict[str, Tensor]:
        """Read all weights by name, which samples them inside a running Pyro model."""
        return self.branch.weights() | self.trunk.weights() | self.head.weights()

    def start(self, seed: int = 0) -> dict[str, Tensor]:
        r"""Weights from which training sets out, by name.

        He's random weights and zero biases. The head is tamed: a scalar product of `p` features is
        of size :math:`\sqrt p` or more, so its weight for `mu` is :math:`1/\sqrt p` (ones, over
        :math:`\sqrt p`, for `"features"`), and `delta` starts as a constant, `sigma` at 0.1.
        """
        generator = torch.Generator().manual_seed(seed)
        weights = self.branch.start(generator) | self.trunk.start(generator)
        head = self.head.start(generator)
        head["head.weight"].zero_()
        head["head.weight"][0] = self.branch_sizes[-1] ** -0.5
        delta = self.likelihood.start_at(0.1)
        if delta is not None:
            head["head.bias"][1] = delta
        return weights | head

    def set_parameters(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into those that are plain parameters; the others are left out."""
        parameters = dict(self.named_parameters())
        with torch.no_grad():
            for name in self.shapes.keys() & parameters.keys():
                parameters[name].copy_(weights[name])

    def prior_of(self, name: str) -> Any:
        """The prior of the weight of this name, in the model's float type and on its device."""
        if self.prior is None:
            raise ValueError("the model is deterministic: its weights have no prior")
        return prior_of(self.prior, name, self.shapes[name], self.head.like)

    def plain_weights(self) -> dict[str, Tensor]:
        """The weights that are plain parameters, by name; empty for a fully Bayesian net."""
        return {name: p for name, p in self.named_parameters() if name in self.shapes}

    def sampled_shapes(self) -> dict[str, torch.Size]:
        """Shapes of the weights that have a prior, by name; empty for a deterministic net."""
        plain = self.plain_weights()
        return {name: shape for name, shape in self.shapes.items() if name not in plain}

    def nodes(
        self, weights: Mapping[str, Tensor], u: Tensor, y: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The output nodes in network units, without any Pyro statement.

        The branch sees each function once and the trunk each location once; they meet in a matrix
        product.

        Args:
            weights: By name, each `(*S, ...)`.
            u: Functions `(n, k)`, physical units.
            y: Locations `(q, d)`, physical units.
            index: Which locations belong to which function, `(n, m)`.

        Returns:
            `mu` and `delta` (`None` with a likelihood of one node), `(*S, n, q)`, or
            `(*S, n, m)` with `index`.
        """
        if index is not None and index.numel() < y.shape[0]:
            used, index = torch.unique(index, return_inverse=True)
            y = y[used]
        b, t = self.branch_features(weights, u), self.trunk_features(weights, y)
        return self.combine(weights, b, t, index)

    def branch_features(self, weights: Mapping[str, Tensor], u: Tensor) -> Tensor:
        """What the branch net makes of functions `(n, k)` in physical units: `(*S, n, p)`."""
        return self.branch.evaluate(self.scaling.u(u), weights)

    def trunk_features(self, weights: Mapping[str, Tensor], y: Tensor) -> Tensor:
        """What the trunk net makes of locations `(q, d)` in physical units: `(*S, q, p)`."""
        return self.trunk.evaluate(self.scaling.y(y), weights)

    def combine(
        self, weights: Mapping[str, Tensor], b: Tensor, t: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The head: from features to the output nodes `mu` and `delta`, as `nodes` gives them."""
        w, c = weights["head.weight"], weights["head.bias"]
        count = self.likelihood.nodes
        offsets = [_without_plates(c[..., j, None, None]) for j in range(count)]
        if self.head_kind == "dot":
            product = _without_plates(contract(b, t, index))
            slopes = [_without_plates(w[..., j, :, None]) for j in range(count)]
            out = [torch.addcmul(o, a, product) for a, o in zip(slopes, offsets, strict=True)]
        else:
            features = [contract(b * w[..., j, None, :], t, index) for j in range(count)]
            out = [_without_plates(f) + o for f, o in zip(features, offsets, strict=True)]
        return out[0], out[1] if count == 2 else None

    def moments(
        self, weights: Mapping[str, Tensor], u: Tensor, y: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of an observation in physical units, `(*S, n, q or m)`."""
        return self.to_physical(*self.nodes(weights, u, y, index))

    def to_physical(self, mu: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """From output nodes to mean and standard deviation in physical units."""
        unit = self.scaling.s.scale
        sigma = self.likelihood.sigma(delta, unit).expand_as(mu)
        return self.scaling.s.inverse(mu), sigma * unit

    def forward(
        self,
        u: Tensor,
        y: Tensor,
        s: Tensor | None = None,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        size: int | tuple[int, int] | None = None,
    ) -> Tensor:
        """The Pyro model: draw the weights, then observe `s`, or draw it.

        Args:
            u: Functions `(n, k)`.
            y: Locations `(q, d)`.
            s: Outputs `(n, q)`, or `(n, m)` with `index`; `None` to draw them.
            index: Which locations belong to which function, `(n, m)`.
            mask: Which outputs are real.
            size: Number of functions in the whole data set, when `u` is a minibatch of it, or
                numbers of functions and points; the likelihood is scaled accordingly.

        Returns:
            `s`, or a draw of it, `(*S, n, q or m)`.
        """
        self.check_inputs(u, y)
        mu, sigma = self.moments(self.weights(), u, y, index)
        n, m = mu.shape[-2:]
        all_n, all_m = whole_size(size, n, m)
        batches = [torch.arange(count, device=u.device) for count in (n, m)]
        observation = dist.Normal(mu, sigma)
        if mask is not None:
            observation = observation.mask(mask)
        functions = pyro.plate("functions", all_n, subsample=batches[0], dim=-2)
        with functions, pyro.plate("points", all_m, subsample=batches[1], dim=-1):
            return pyro.sample("s", observation, obs=s)

    def example(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments `u`, `y`, `s` of the smallest size, to run the model or its guide once."""
        like = self.head.like
        sizes = (1, self.sensors), (1, self.coordinates), (1, 1)
        u, y, s = (like.new_zeros(size) for size in sizes)
        return u, y, s

    def check_inputs(self, u: Tensor, y: Tensor) -> None:
        """Refuse functions and locations of another size than the model was built for."""
        if u.dim() != 2 or u.shape[1] != self.sensors:
            raise ValueError(
                f"u has shape {tuple(u.shape)}, the model was built for (n, {self.sensors}): "
                f"{self.sensors} sensors; interpolate the functions onto them"
            )
        if y.dim() != 2 or y.shape[1] != self.coordinates:
            raise ValueError(
                f"y has shape {tuple(y.shape)}, the model was built for (q, {self.coordinates}): "
                f"a location a row, {self.coordinates} coordinates each"
            )

    def __repr__(self) -> str:
        widths = ["-".join(map(str, sizes)) for sizes in (self.branch_sizes, self.trunk_sizes)]
        act = self.activation if isinstance(self.activation, str) else "own activation"
        return (
            f"DeepONet({self.sensors} sensors, {self.coordinates} "
            f"coordinate{'s' * (self.coordinates > 1)}, branch {widths[0]}, trunk {widths[1]}, "
            f"{act}, head {self.head_kind}, {sum(s.numel() for s in self.shapes.values())} weights"
            f"{'' if self.sampled_shapes() else ', deterministic'})"
        )


def whole_size(size: int | tuple[int, int] | None, n: int, m: int) -> tuple[int, int]:
    """Functions and points of the data set of which a batch of `n` functions x `m` points is.

    Examples:
        >>> whole_size(None, 5, 7), whole_size(100, 5, 7), whole_size((100, 50), 5, 7)
        ((5, 7), (100, 7), (100, 50))
    """
    if size is None:
        return n, m
    return (size, m) if isinstance(size, int) else size


def contract(b: Tensor, t: Tensor, index: Tensor | None = None) -> Tensor:
    r"""The scalar products :math:`\langle b_i, t_j \rangle` of functions and their locations.

    With an index there are two exact ways: multiply over the whole grid and pick the scalars, or
    pick the features of each point and multiply those. The first moves `q` scalars a function, the
    second `m` vectors of width `p`; the cheaper one is taken.

    Args:
        b: Branch features `(*S, n, p)`.
        t: Trunk features `(*S, q, p)`.
        index: `(n, m)`.

    Returns:
        `(*S, n, q)`, or `(*S, n, m)`.
    """
    if index is None:
        return b @ t.mT
    return _over_grid(b, t, index) if _grid_is_cheaper(b, t, index) else _over_points(b, t, index)


def _grid_is_cheaper(b: Tensor, t: Tensor, index: Tensor) -> bool:
    return t.shape[-2] <= index.shape[-1] * b.shape[-1]


def _over_grid(b: Tensor, t: Tensor, index: Tensor) -> Tensor:
    grid = b @ t.mT
    return grid.gather(-1, index.expand(*grid.shape[:-1], -1))


def _over_points(b: Tensor, t: Tensor, index: Tensor) -> Tensor:
    # With all samples of a location side by side one look-up fetches them in one piece.
    samples = torch.broadcast_shapes(b.shape[:-2], t.shape[:-2])
    b, t = (x.expand(*samples, -1, -1).reshape(-1, *x.shape[-2:]) for x in (b, t))
    rows = t.transpose(0, 1).flatten(1)
    picked = torch.nn.functional.embedding(index, rows).unflatten(-1, (len(t), -1))
    products = (picked * b.transpose(0, 1).unsqueeze(1)).sum(-1)
    return products.permute(2, 0, 1).reshape(*samples, *index.shape)


def _without_plates(x: Tensor) -> Tensor:
    """Drop the two dimensions of size one that Pyro keeps for the plates left of `(n, q)`."""
    return x.squeeze(-3).squeeze(-3) if x.dim() >= 4 and x.shape[-4:-2] == (1, 1) else x


def _activation(activation: str | Activation) -> Activation:
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation is {activation!r}, expected one of {names}, or a callable")
    return ACTIVATIONS[activation]


def _check_sizes(
    sensors: int, coordinates: int, branch: Sequence[int], trunk: Sequence[int]
) -> None:
    for name, sizes in (
        ("sensors", [sensors]),
        ("coordinates", [coordinates]),
        ("branch", branch),
        ("trunk", trunk),
    ):
        if not len(sizes) or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ValueError(f"{name} is {sizes}, expected positive whole numbers")
    if branch[-1] != trunk[-1]:
        raise ValueError(
            f"the branch ends with width {branch[-1]} and the trunk with {trunk[-1]}; "
            "their product needs equal last widths"
        )

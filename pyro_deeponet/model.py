"""The DeepONet as a probabilistic program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_deeponet.data import OperatorData
from pyro_deeponet.head import Head
from pyro_deeponet.layers import MLP, Activation, Linear, prior_of
from pyro_deeponet.likelihoods import Heteroscedastic, Likelihood
from pyro_deeponet.networks import (
    BayesianModule,
    Features,
    Network,
    check_sizes,
    common_width,
    count_features,
    describe,
    make_network,
)
from pyro_deeponet.priors import Normal, Prior
from pyro_deeponet.scaling import Scaling

__all__ = ["DeepONet", "likelihood_scale", "whole_size"]

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

    Either net may be any `torch.nn.Module`, such as a convolutional one over a field that is
    flattened into the sensors. It is given `(rows, k)` or `(rows, d)` in network units, makes of
    each row by itself `p` features, `(rows, p)`, and has a site `branch.<name>` for each of its
    parameters; those with `requires_grad=False` stay as they are. Training starts from the values
    that it came with. A callable that makes the module, such as its class, is called anew for each
    seed instead, so that the members of an ensemble start apart.

    Args:
        sensors: Number of sensors `k` of an input function.
        coordinates: Number of coordinates `d` of a location.
        branch: Widths of the branch net's layers, a module, or a callable that makes one.
        trunk: The same for the trunk net; its last width is that of the branch.
        activation: Of nets given by their widths: a name (`"relu"`, `"tanh"`, `"gelu"`, `"silu"`,
            `"sigmoid"`, `"sine"`, `"identity"`) or a callable on tensors.
        final_activation: Whether they end with the activation, as in the paper's appendix.
        head: `"dot"`: the scalar product of `b` and `t` goes to the linear output nodes, as in the
            paper. `"features"`: their elementwise product does, a weight a feature.
        outputs: Number `c` of outputs at a location, for data with `s` `(n, q, c)`; `None` for a
            single one, `s` `(n, q)`. With the head `"dot"` each output has a `c`-th of the features
            to itself; with `"features"` all of them draw on all features, with weights of their
            own.
        prior: Prior of every weight and bias, see `pyro_deeponet.priors`. `None`: plain parameters,
            the deterministic DeepONet. A prior that gives `None` for some weights leaves those
            plain parameters.
        likelihood: See `pyro_deeponet.likelihoods`; `Heteroscedastic()` unless told.
        scaling: A `Scaling`, or `None` for none. `"standard"` and `"minmax"` are fitted to data,
            by `for_data`.
        trunk_features: A callable from locations `(q, d)` in physical units, in which a period
            means something, to features `(q, d')`, which the trunk gets in their place; a row by
            itself, such as `networks.Fourier((1.0, None))`. The scaling of locations is then that
            of the features.
        branch_skip: Whether a linear map of the sensors is added to the branch's features,
            :math:`b = B(u) + W u`, site `branch.skip.weight` `(p, k)`. A linear operator is then
            learnt by a linear path, instead of by ReLUs that must agree to be straight; one that is
            nearly so leaves only the rest to the net.

    Examples:
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(8, 8), trunk=(8, 8))
        >>> model(torch.zeros(3, 4), torch.zeros(5, 1)).shape
        torch.Size([3, 5])
        >>> model
        DeepONet(4 sensors, 1 coordinate, branch 8-8, trunk 8-8, relu, head dot, 204 weights)

        A convolutional branch over a 6 x 6 field, and a trunk that knows the period of `x`:

        >>> from torch import nn
        >>> from pyro_deeponet.networks import Fourier
        >>> cnn = nn.Sequential(
        ...     nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(),
        ...     nn.Linear(16, 8))
        >>> periodic = Fourier((1.0, None), harmonics=2)
        >>> model = DeepONet(36, 2, branch=cnn, trunk=(8, 8), trunk_features=periodic)
        >>> model(torch.zeros(3, 36), torch.rand(5, 2)).shape, model.shapes["branch.1.weight"]
        (torch.Size([3, 5]), torch.Size([4, 1, 3, 3]))
        >>> DeepONet(36, 2, branch_skip=True).shapes["branch.skip.weight"]
        torch.Size([30, 36])
    """

    def __init__(
        self,
        sensors: int,
        coordinates: int,
        branch: Network = (30, 30, 30),
        trunk: Network = (30, 30, 30),
        activation: str | Activation = "relu",
        final_activation: bool = False,
        head: str = "dot",
        outputs: int | None = None,
        prior: Prior | None = Normal(0.0, 1.0),  # noqa: B008 - immutable
        likelihood: Likelihood | None = None,
        scaling: Scaling | None = None,
        trunk_features: Features | None = None,
        branch_skip: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("sensors", [sensors])
        check_sizes("coordinates", [coordinates])
        check_sizes("outputs", [1 if outputs is None else outputs])
        if isinstance(scaling, str):
            raise ValueError(
                f"scaling {scaling!r} is fitted to data: call DeepONet.for_data(train, "
                f"scaling={scaling!r}), or pass a pyro_deeponet.scaling.Scaling"
            )
        self.sensors, self.coordinates, self.outputs = sensors, coordinates, outputs
        self.activation, self.final_activation = activation, final_activation
        self.features, self.branch_skip = trunk_features, branch_skip
        self.prior = prior
        self.likelihood = Heteroscedastic() if likelihood is None else likelihood
        inputs = count_features(trunk_features, coordinates)
        self.scaling = Scaling.identity(sensors, inputs, outputs) if scaling is None else scaling
        _check_scaling(self.scaling, sensors, inputs, outputs)
        kind = prior, activation, final_activation
        self.branch: MLP | BayesianModule = make_network(branch, sensors, *kind, "branch")
        self.trunk: MLP | BayesianModule = make_network(trunk, inputs, *kind, "trunk")
        self.branch_sizes, self.trunk_sizes = self.branch.sizes, self.trunk.sizes
        width = common_width(self.branch_sizes, self.trunk_sizes)
        if branch_skip:
            if hasattr(self.branch, "skip"):
                raise ValueError("the branch has a part 'skip' itself; rename it in the module")
            self.branch.skip = Linear(sensors, width, prior, "branch.skip", bias=False)
        self.head = Head(head, width, self.likelihood.nodes, outputs, prior)
        self.shapes = {site: size for part in self._parts() for site, size in part.shapes.items()}
        self.set_parameters(self.start(seed=0))

    @classmethod
    def for_data(
        cls,
        data: OperatorData,
        *,
        scaling: str | Scaling | None = "standard",
        trunk_features: Features | None = None,
        **kwargs: Any,
    ) -> DeepONet:
        """A model for this data: its number of sensors, coordinates and outputs, and its scaling.

        Args:
            data: Training data.
            scaling: `"standard"` (z-scores), `"minmax"` (zero to one), `None` or a `Scaling`.
            trunk_features: As `DeepONet` takes it; it is the features that are scaled.
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
        sensors, coordinates = data.u.shape[1], data.y.shape[1]
        for name in ("sensors", "coordinates", "outputs"):
            if name in kwargs:
                raise TypeError(f"for_data reads {name} off the data; leave out {name}=")
        count_features(trunk_features, coordinates)
        seen = data if trunk_features is None else replace(data, y=trunk_features(data.y))
        maps = getattr(Scaling, scaling)(seen) if isinstance(scaling, str) else scaling
        kwargs |= {"outputs": data.outputs, "scaling": maps, "trunk_features": trunk_features}
        return cls(sensors, coordinates, **kwargs)

    def _parts(self) -> list[MLP | BayesianModule | Linear]:
        skip = [self.branch.skip] if self.branch_skip else []
        return [self.branch, *skip, self.trunk, self.head]

    def weights(self) -> dict[str, Tensor]:
        """Read all weights by name, which samples them inside a running Pyro model."""
        return {site: w for part in self._parts() for site, w in part.weights().items()}

    def start(self, seed: int = 0) -> dict[str, Tensor]:
        r"""Weights from which training sets out, by name.

        He's random weights and zero biases; a module's own values, or those of a module made with
        this seed, as told above. The linear path of `branch_skip` starts at zero, which trained
        better than random weights: the net sets out as it would without.

        The head is tamed: a scalar product of `p` features is of size :math:`\sqrt p` or more, so
        its weight for `mu` is :math:`1/\sqrt p` (ones, over :math:`\sqrt p`, for `"features"`),
        and `delta` starts as a constant, `sigma` at 0.1.

        Examples:
            >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
            >>> model.start(seed=1)["branch.0.weight"].shape
            torch.Size([8, 4])
        """
        generator = torch.Generator().manual_seed(seed)
        weights = {s: w for part in self._parts() for s, w in part.start(generator).items()}
        if self.branch_skip:
            weights["branch.skip.weight"].zero_()
        delta = self.likelihood.start_at(0.1)
        if delta is not None:
            self.head.rows(weights["head.bias"][:, None], 1).fill_(delta)
        return weights

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
        """The weights that are plain parameters, by name; empty for a fully Bayesian net.

        Examples:
            >>> from pyro_deeponet.priors import ByLayer
            >>> last = ByLayer({"head.*": Normal(), "*": None})
            >>> list(DeepONet(4, 1, branch=(8,), trunk=(8,), prior=last).plain_weights())
            ['branch.0.weight', 'branch.0.bias', 'trunk.0.weight', 'trunk.0.bias']
        """
        return {name: p for name, p in self.named_parameters() if name in self.shapes}

    def sampled_shapes(self) -> dict[str, torch.Size]:
        """Shapes of the weights that have a prior, by name; empty for a deterministic net.

        Examples:
            >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
            >>> model.sampled_shapes()["head.weight"]
            torch.Size([2, 1])
        """
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
            `(*S, n, m)` with `index`; with several outputs `(*S, n, q or m, c)`.

        Examples:
            >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
            >>> mu, delta = model.nodes(model.start(), torch.zeros(3, 4), torch.zeros(5, 1))
            >>> mu.shape, delta.shape
            (torch.Size([3, 5]), torch.Size([3, 5]))
        """
        if index is not None and index.numel() < y.shape[0]:
            used, index = torch.unique(index, return_inverse=True)
            y = y[used]
        b, t = self.branch_features(weights, u), self.trunk_features(weights, y)
        return self.head.combine(weights, b, t, index)

    def branch_features(self, weights: Mapping[str, Tensor], u: Tensor) -> Tensor:
        """What the branch net makes of functions `(n, k)` in physical units: `(*S, n, p)`."""
        x = self.scaling.u(u)
        b = self.branch.evaluate(x, weights)
        return b + self.branch.skip.evaluate(x, weights) if self.branch_skip else b

    def trunk_features(self, weights: Mapping[str, Tensor], y: Tensor) -> Tensor:
        """What the trunk net makes of locations `(q, d)` in physical units: `(*S, q, p)`."""
        seen = y if self.features is None else self.features(y)
        return self.trunk.evaluate(self.scaling.y(seen), weights)

    def moments(
        self, weights: Mapping[str, Tensor], u: Tensor, y: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of an observation in physical units, shaped as `nodes`.

        Examples:
            >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
            >>> mean, std = model.moments(model.start(), torch.zeros(1, 4), torch.zeros(2, 1))
            >>> std
            tensor([[0.1000, 0.1000]])
        """
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
            s: Outputs `(n, q)`, or `(n, m)` with `index`, and `(n, q or m, c)` where there are
                several at a location; `None` to draw them.
            index: Which locations belong to which function, `(n, m)`.
            mask: Which outputs are real.
            size: Number of functions in the whole data set, when `u` is a minibatch of it, or
                numbers of functions and points; the likelihood is scaled accordingly.

        Returns:
            `s`, or a draw of it, `(*S, n, q or m)`, or `(*S, n, q or m, c)`.

        Examples:
            >>> from pyro import poutine
            >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
            >>> trace = poutine.trace(model).get_trace(torch.zeros(3, 4), torch.zeros(5, 1))
            >>> trace.nodes["s"]["fn"].batch_shape, trace.nodes["head.weight"]["value"].shape
            (torch.Size([3, 5]), torch.Size([2, 1]))
        """
        self.check_inputs(u, y)
        mu, sigma = self.moments(self.weights(), u, y, index)
        several = self.outputs is not None
        for name, given in (("s", s), ("mask", mask)):
            if given is not None:
                _check_shape(name, given, mu.shape[-3 if several else -2 :])
        n, m = mu.shape[-3:-1] if several else mu.shape[-2:]
        all_n, all_m = whole_size(size, n, m)
        batches = [torch.arange(count, device=u.device) for count in (n, m)]
        observation = dist.Normal(mu, sigma)
        if mask is not None:
            observation = observation.mask(mask)
        if several:
            observation = observation.to_event(1)
        functions = pyro.plate("functions", all_n, subsample=batches[0], dim=-2)
        with functions, pyro.plate("points", all_m, subsample=batches[1], dim=-1):
            return pyro.sample("s", observation, obs=s)

    def example(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments `u`, `y`, `s` of the smallest size, to run the model or its guide once."""
        like = self.head.like
        several = () if self.outputs is None else (self.outputs,)
        sizes: list[tuple[int, ...]] = [(1, self.sensors), (1, self.coordinates), (1, 1, *several)]
        u, y, s = (like.new_zeros(size) for size in sizes)
        return u, y, s

    def cost(self, n: int, q: int) -> int:
        """About how many multiplications it takes to evaluate `n` functions at `q` locations."""
        width = self.branch_sizes[-1]
        skip = self.sensors * width * self.branch_skip
        return n * (self.branch.cost + skip) + q * self.trunk.cost + n * q * width

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

    def check_data(self, data: OperatorData) -> None:
        """Refuse data of another number of sensors, coordinates or outputs."""
        self.check_inputs(data.u, data.y)
        if data.outputs != self.outputs:
            several = "" if self.outputs is None else f", {self.outputs}"
            raise ValueError(
                f"s has shape {tuple(data.s.shape)}, the model was built for (n, q{several}); "
                "build it with DeepONet.for_data(data), or with outputs= as the data have"
            )

    def __repr__(self) -> str:
        branch, trunk = describe(self.branch), describe(self.trunk)
        if self.features is not None:
            own = not is_dataclass(self.features)
            trunk += f" on {'own features' if own else self.features}"
        act = self.activation if isinstance(self.activation, str) else "own activation"
        layers = any(isinstance(net, MLP) for net in (self.branch, self.trunk))
        return (
            f"DeepONet({self.sensors} sensors, {self.coordinates} "
            f"coordinate{'s' * (self.coordinates > 1)}, "
            + ("" if self.outputs is None else f"{self.outputs} outputs, ")
            + f"branch {branch}"
            f"{' + skip' * self.branch_skip}, trunk {trunk}, {f'{act}, ' * layers}"
            f"head {self.head.kind}, {sum(s.numel() for s in self.shapes.values())} weights"
            f"{'' if self.sampled_shapes() else ', deterministic'})"
        )


def likelihood_scale(size: int | tuple[int, int] | None, s: Tensor) -> float:
    """By how much the likelihood of a batch `s` `(n, m, ...)` is scaled up to the whole data set.

    Examples:
        >>> likelihood_scale((100, 50), torch.zeros(5, 10))
        100.0
    """
    n, m = s.shape[:2]
    return math.prod(whole_size(size, n, m)) / (n * m)


def whole_size(size: int | tuple[int, int] | None, n: int, m: int) -> tuple[int, int]:
    """Functions and points of the data set of which a batch of `n` functions x `m` points is.

    Examples:
        >>> whole_size(None, 5, 7), whole_size(100, 5, 7), whole_size((100, 50), 5, 7)
        ((5, 7), (100, 7), (100, 50))
    """
    if size is None:
        return n, m
    return (size, m) if isinstance(size, int) else size


def _check_shape(name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """Refuse a tensor of another shape, also one that would broadcast."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}: "
            "a value for each function and point"
        )


def _check_scaling(scaling: Scaling, sensors: int, inputs: int, outputs: int | None) -> None:
    sizes = [("u", sensors, "sensors"), ("y", inputs, "inputs of the trunk")]
    for name, size, of in (*sizes, ("s", outputs or 1, "outputs")):
        for tensor in getattr(scaling, name).buffers():
            if tensor.numel() not in (1, size):
                raise ValueError(
                    f"scaling.{name} is for {tensor.numel()} columns, the model has {size} {of}; "
                    "let DeepONet.for_data fit it"
                )

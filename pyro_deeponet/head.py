"""From the features of branch and trunk to the output nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pyro_deeponet.contraction import affine, contract, without_plates
from pyro_deeponet.layers import Linear
from pyro_deeponet.priors import Prior

__all__ = ["HEADS", "Head"]

HEADS = ("dot", "features")


class Head(Linear):
    r"""The linear output nodes :math:`\mu` and :math:`\delta` of each output.

    With features :math:`b` of a function and :math:`t` of a location, `"dot"` makes them of the
    scalar product, :math:`w \langle b, t \rangle + c`, and `"features"` of the elementwise one,
    :math:`\langle w, b \circ t \rangle + c`. The rows of its weight are those of all :math:`\mu`,
    then those of all :math:`\delta`.

    Args:
        kind: `"dot"` or `"features"`.
        width: Number of features.
        nodes: Nodes of an output: 2 for `mu` and `delta`, 1 for `mu` alone.
        outputs: Number of outputs at a location, or `None` for one without a dimension of its own.
            With `"dot"` each has an equal share of the features to itself.
        prior: As in `Linear`.

    Attributes:
        count: Number of outputs at a location.
        shares: With `"dot"`, the features of each output.

    Examples:
        >>> head = Head("dot", width=4, nodes=2, outputs=None, prior=None)
        >>> mu, delta = head.combine(head.weights(), torch.ones(3, 4), torch.ones(5, 4))
        >>> mu.shape, delta.shape
        (torch.Size([3, 5]), torch.Size([3, 5]))
    """

    def __init__(
        self, kind: str, width: int, nodes: int, outputs: int | None, prior: Prior | None
    ) -> None:
        if kind not in HEADS:
            raise ValueError(f"head is {kind!r}, expected one of {', '.join(map(repr, HEADS))}")
        count = 1 if outputs is None else outputs
        super().__init__(1 if kind == "dot" else width, count * nodes, prior, "head")
        self.kind, self.nodes, self.outputs, self.count = kind, nodes, outputs, count
        self.shares = _shares(width, count) if kind == "dot" else [slice(0, width)]

    def rows(self, weight: Tensor, node: int) -> Tensor:
        """The rows of a weight `(*S, count * nodes, ...)` for `mu` (0) or `delta` (1)."""
        return weight.narrow(-2, node * self.count, self.count)

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        r"""Weights from which training sets out: tamed, as `DeepONet.start` says."""
        weights = {site: torch.zeros_like(w) for site, w in super().start(generator).items()}
        share = self.shares[0]
        self.rows(weights["head.weight"], 0).fill_((share.stop - share.start) ** -0.5)
        return weights

    def combine(
        self, weights: Mapping[str, Tensor], b: Tensor, t: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The output nodes `mu` and `delta`, as `DeepONet.nodes` gives them.

        Args:
            weights: By name; those of the head are used.
            b: Features of the branch `(*S, n, p)`.
            t: Features of the trunk `(*S, q, p)`.
            index: Which locations belong to which function, `(n, m)`.
        """
        made = list(self.each_node(weights, b, t, index))
        nodes = [made[i :: self.nodes] for i in range(self.nodes)]
        mu, *delta = (x[0] if self.outputs is None else torch.stack(x, -1) for x in nodes)
        return mu, delta[0] if delta else None

    def each_node(
        self,
        weights: Mapping[str, Tensor],
        b: Tensor,
        t: Tensor,
        index: Tensor | None = None,
        memory: Sequence[Tensor | None] = (None, None),
    ) -> Iterator[Tensor]:
        """`mu` and `delta` of one output after the other, each made when the last is done with.

        Args:
            weights: As in `combine`.
            b: As in `combine`.
            t: As in `combine`.
            index: As in `combine`.
            memory: Without gradients, two pieces of memory of the shape of a node, which may be
                used for the results: the last node stands in the first piece, others in the second.
        """
        w, c = weights["head.weight"], weights["head.bias"]
        last = self.nodes - 1
        for output in range(self.count):
            product = None
            if self.kind == "dot":
                own = self.shares[output]
                parts = (b, t) if self.count == 1 else (b[..., own], t[..., own])
                product = without_plates(contract(*parts, index, memory[0]))
            for i in range(self.nodes):
                j = i * self.count + output
                offset = without_plates(c[..., j, None, None])
                if product is None:
                    place = memory[0] if i == last else memory[1]
                    scaled = contract(b * w[..., j, None, :], t, index, place)
                    yield without_plates(scaled) + offset if place is None else scaled.add_(offset)
                else:
                    slope = without_plates(w[..., j, :, None])
                    yield affine(slope, product, offset, product if i == last else memory[1])


def _shares(width: int, outputs: int) -> list[slice]:
    """The features of each output: equal parts of all of them."""
    if width % outputs:
        raise ValueError(
            f"the nets end with {width} features, which {outputs} outputs cannot share equally; "
            f"with head='dot' take a multiple of {outputs}, or head='features'"
        )
    part = width // outputs
    return [slice(i * part, (i + 1) * part) for i in range(outputs)]

"""An optimiser that turns each weight matrix into a basis in which its numbers can be scaled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Soap"]

#: Sides longer than this stay as they are: their basis would cost more than the step.
LONGEST_SIDE = 512


class Soap(torch.optim.Optimizer):
    r"""Adam in the eigenbasis of Shampoo's preconditioner.

    For a weight matrix with gradients :math:`G`, running means of :math:`G G^\top` and
    :math:`G^\top G` have eigenvectors :math:`U` and :math:`V`. Adam's step is taken for
    :math:`U^\top G V` and turned back. Directions along which the loss is flat are mostly mixtures
    of many weights; in the basis they are numbers of their own, each with its own step.

    The last two dimensions of a parameter are its matrix, and leading ones count matrices.
    Parameters with fewer dimensions, and those of groups with `rotate=False`, have Adam's step.
    Matrices of one shape are worked on together.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Memory of the gradients, and of their squares and products.
        eps: Least root of a squared gradient.
        every: Steps after which the basis follows the running means, by one step of orthogonal
            iteration.
        rotate: Whether matrices are turned.

    Examples:
        >>> weight = torch.nn.Parameter(torch.ones(3, 2))
        >>> optimizer = Soap([weight], lr=0.03)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     weight.square().sum().backward()
        ...     optimizer.step()
        >>> bool(weight.abs().max() < 0.1)
        True

    Reference:
        Vyas et al., *SOAP: Improving and Stabilizing Shampoo using Adam*, 2024.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-7,
        every: int = 10,
        rotate: bool = True,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "every": every, "rotate": rotate}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that are there."""
        for group in self.param_groups:
            stacks: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    stacks.setdefault(tuple(parameter.shape), []).append(parameter)
            for parameters in stacks.values():
                self._step(group, parameters)

    def _step(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """One step for parameters of one shape, whose state is kept with the first of them."""
        gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
        state = self.state[parameters[0]]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(gradient, 1 - first)
        mean, turned = state["mean"], gradient
        bases = _bases(state, gradient, second, group["every"]) if group["rotate"] else []
        for left, basis in bases:
            mean, turned = (basis.mT @ x if left else x @ basis for x in (mean, turned))
        state["square"].mul_(second).addcmul_(turned, turned, value=1 - second)
        root = (state["square"] / (1 - second ** state["step"])).sqrt_()
        least = group["eps"] * root.amax((-2, -1), keepdim=True) if bases else 0.0
        change = mean / (1 - first ** state["step"]) / (root + least + 1e-20)
        for left, basis in bases:
            change = basis @ change if left else change @ basis.mT
        for parameter, x in zip(parameters, change, strict=True):
            parameter.sub_(x, alpha=group["lr"])


def _bases(
    state: dict[str, Any], gradient: Tensor, memory: float, every: int
) -> list[tuple[bool, Tensor]]:
    """The bases of the rows (True) and of the columns (False) of the matrices, where they turn."""
    if gradient.dim() < 3:
        return []
    found = []
    for name, left in (("rows", True), ("columns", False)):
        if not 1 < gradient.shape[-2 if left else -1] <= LONGEST_SIDE:
            continue
        product = gradient @ gradient.mT if left else gradient.mT @ gradient
        if state["step"] == 1:
            state[name] = product * (1 - memory)
            # Largest first, as the iteration has them.
            state[f"{name} basis"] = torch.linalg.eigh(product)[1].flip(-1)
        else:
            state[name].lerp_(product, 1 - memory)
            if state["step"] % every == 0:
                state[f"{name} basis"] = torch.linalg.qr(state[name] @ state[f"{name} basis"])[0]
        found.append((left, state[f"{name} basis"]))
    return found

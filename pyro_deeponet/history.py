"""What happened during a fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["History"]


@dataclass
class History:
    """Losses and scores of a fit, in nats over the whole data set where not said otherwise.

    Attributes:
        warm_start: Mean squared error in network units at each step of the warm start.
        loss: Negative ELBO at each step.
        log_likelihood: Its expected log-likelihood; NaN where a foreign ELBO does not tell.
        kl: Its KL divergence, before `kl_weight`; NaN likewise.
        lr: Learning rate at each step.
        validation: Scores on the validation data, each a list with an entry a check: `step`,
            `nmse`, `nll`.
        diagnostics: What `mcmc` found out about its chains.
        seconds: Time spent, over all calls that continued one another.

    Examples:
        >>> history = History(loss=[3.0, 2.0])
        >>> history
        History(0 warm-start steps, 2 steps, loss 2, 0.0 s)
        >>> History(**history.to_dict()) == history
        True
    """

    warm_start: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    log_likelihood: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    validation: dict[str, list[float]] = field(default_factory=dict)
    diagnostics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for a file.

        Examples:
            >>> sorted(History(loss=[3.0]).to_dict())[:4]
            ['diagnostics', 'kl', 'log_likelihood', 'loss']
        """
        return asdict(self)

    def __repr__(self) -> str:
        loss = f", loss {self.loss[-1]:.4g}" if self.loss else ""
        return (
            f"History({len(self.warm_start)} warm-start steps, {len(self.loss)} steps{loss}, "
            f"{self.seconds:.1f} s)"
        )

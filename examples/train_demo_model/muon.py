"""The Muon optimizer for small matrices.

Owns: momentum whose direction is made orthogonal by a few Newton-Schulz steps; matrices of
one shape go through those steps together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """Matrices near the closest (semi-)orthogonal ones, `(count, rows, columns)`."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    turned: Tensor = (x.mT if tall else x).float()
    return turned


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized, with decoupled weight decay."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[Any, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for same in by_shape.values():
                self._update(same, group)

    def _update(self, same: list[Tensor], group: dict[str, Any]) -> None:
        wanted = []
        for matrix in same:
            state = self.state[matrix]
            if not state:
                state["momentum"] = torch.zeros_like(matrix)
            momentum: Tensor = state["momentum"]
            assert matrix.grad is not None
            momentum.lerp_(matrix.grad, 1 - group["momentum"])
            wanted.append(matrix.grad.lerp(momentum, group["momentum"]))
        turned = orthogonal(torch.stack(wanted))
        rows, columns = same[0].shape
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        for matrix, direction in zip(same, turned, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(direction, alpha=-rate)

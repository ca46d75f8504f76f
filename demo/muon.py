"""Muon (Jordan et al., 2024): momentum whose steps are made orthogonal, for the matrices inside the layers.

About twice the progress per step of Adam at this size. Embeddings and norms stay with Adam.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Muon:
    def __init__(self, matrices: Sequence[Tensor], momentum: float = 0.95) -> None:
        self.matrices = matrices
        self.momentum = momentum
        self.velocities = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one step and clear the gradients."""
        for matrix, velocity in zip(self.matrices, self.velocities, strict=True):
            gradient = matrix.grad
            assert gradient is not None
            velocity.lerp_(gradient, 1 - self.momentum)
            step = orthogonal(gradient.lerp(velocity, self.momentum))
            scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.mul_(1 - 0.01 * learning_rate).add_(step, alpha=-learning_rate * scale)
            matrix.grad = None


def orthogonal(matrix: Tensor) -> Tensor:
    """Roughly the nearest orthogonal matrix: five steps of a quintic Newton-Schulz iteration."""
    x = (matrix / (matrix.norm() + 1e-7)).bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if tall else x).float()

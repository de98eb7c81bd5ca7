# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Losses, log-probabilities and entropies of a last layer by torch's own ops, in any dtype."""

from __future__ import annotations

from typing import Any

import torch

LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "class weights": {"class_weight": torch.linspace(0.5, 2.0, 11).double()},
    "label smoothing": {"label_smoothing": 0.1},
    "z loss": {"z_loss": 0.02},
    "soft cap": {"softcap": 2.5},
    "another label ignored": {"ignore_index": 3},
    "all": {
        "class_weight": torch.linspace(0.5, 2.0, 11).double(), "label_smoothing": 0.3,
        "z_loss": 1e-3, "softcap": 4.0, "ignore_index": 0,
    },
}  # fmt: skip


def drawn(generator: Any, dtype: Any = torch.float64, device: str = "cpu") -> list[Any]:
    """x, weight and bias that require grad, and labels of which some are ignored."""
    made = [
        torch.randn(shape, dtype=torch.float64, generator=generator).to(device, dtype)
        for shape in ((2, 7, 6), (11, 6), (11,))
    ]
    labels = torch.randint(0, 11, (2, 7), generator=generator)
    labels[0, 3:5] = -100
    return [*(one.requires_grad_() for one in made), labels.to(device)]


def logits_of(x: Any, weight: Any, bias: Any, softcap: float | None) -> Any:
    logits = torch.nn.functional.linear(x, weight, bias)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def loss(
    x: Any, weight: Any, bias: Any, labels: Any, reduction: str = "none", *,
    class_weight: Any = None, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, ignore_index: int = -100,
) -> Any:  # fmt: skip
    logits = logits_of(x, weight, bias, softcap)
    one_each = logits.new_ones(logits.shape[-1])
    classes = one_each if class_weight is None else class_weight.to(logits)
    counted = torch.where(labels == ignore_index, 0, classes[labels.clamp(min=0)])
    labels = torch.where((labels < 0) & (labels != ignore_index), ignore_index, labels)
    rows = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), classes, reduction="none",
        label_smoothing=label_smoothing, ignore_index=ignore_index,
    ).view(labels.shape)  # fmt: skip
    rows = rows + z_loss * counted * logits.logsumexp(-1).square()
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / counted.sum()


def log_probs(
    x: Any, weight: Any, bias: Any, labels: Any, *, temperature: float = 1.0,
    softcap: float | None = None, ignore_index: int = -100,
) -> tuple[Any, Any]:  # fmt: skip
    """Each label's log-probability and the entropy of its row."""
    every = (logits_of(x, weight, bias, softcap) / temperature).log_softmax(-1)
    counts = labels != ignore_index
    chosen = every.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    entropy = -torch.special.xlogy(every.exp(), every.exp()).sum(-1)
    return torch.where(counts, chosen, 0), torch.where(counts, entropy, 0)

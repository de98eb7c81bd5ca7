# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for cross_entropy: the loss, and the gradient in the same pass.

See _bench_contestants.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("logits",), ("dlogits",)
STEP = 7919  # stride between labels of consecutive rows; a prime scatters them


def labels_of(module: Any, logits: Any, **options: Any) -> Any:
    rows, cols = logits.shape
    return module.arange(rows, **options) * STEP % cols


def set_labels(a: Any) -> None:
    """Create the labels at the first call, as a NumPy, torch or CuPy array."""
    if hasattr(a, "labels"):
        return
    name = type(a.logits).__module__.split(".")[0]
    options = {"device": a.logits.device} if name == "torch" else {}
    a.labels = labels_of(importlib.import_module(name), a.logits, **options)
    a.loss, a.lse = membound.cross_entropy(a.logits, a.labels, return_lse=True)


def ours(a: Any) -> Any:
    set_labels(a)
    return membound.cross_entropy(a.logits, a.labels, out=a.loss, dlogits=a.dlogits, dloss=1.0)


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """Loss and gradient; autograd cannot be captured in a CUDA graph."""
    if a.logits.is_cuda:
        return None
    labels = labels_of(torch, a.logits, device=a.logits.device)
    leaf = a.logits.detach().requires_grad_()

    def call() -> Any:
        loss = torch.nn.functional.cross_entropy(leaf, labels, reduction="sum")
        return torch.autograd.grad(loss, leaf)

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    logits = a.logits.astype(wide)
    rows, labels = np.arange(logits.shape[0]), labels_of(np, a.logits)
    top = logits.max(-1, keepdims=True)
    power = np.exp(logits - top)
    total = power.sum(-1, keepdims=True)
    loss = (np.log(total) + top)[:, 0] - logits[rows, labels]
    here = np.arange(logits.shape[1]) == labels[:, None]
    return loss, (power / total - here).astype(a.logits.dtype)

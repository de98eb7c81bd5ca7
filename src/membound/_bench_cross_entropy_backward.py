# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for cross_entropy_backward, with lse known; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound
from membound import _bench_cross_entropy as forward

READ, WRITTEN = ("logits",), ("dlogits",)


def ours(a: Any) -> Any:
    forward.set_labels(a)
    return membound.cross_entropy_backward(1.0, a.logits, a.labels, a.lse, dlogits=a.dlogits)


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.logits.is_cuda:
        return None
    labels = forward.labels_of(torch, a.logits, device=a.logits.device)
    leaf = a.logits.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, labels, reduction="sum")
    return partial(torch.autograd.grad, loss, leaf, retain_graph=True)


def formula(np: Any, a: Any, wide: Any) -> Any:
    return forward.formula(np, a, wide)[1]

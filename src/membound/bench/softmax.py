# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for softmax and cross entropy, and for their gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import membound
from membound.bench.contestants import Call, Op, scattered


def labels_of(logits: Any, module: Any = None) -> Any:
    return scattered(logits, logits.shape[1], module)


def _ours_loss(a: Any) -> Call:
    labels = labels_of(a.logits)
    loss = membound.cross_entropy(a.logits, labels)
    call = partial(membound.cross_entropy, a.logits, labels, out=loss)
    return partial(call, dlogits=a.dlogits, dloss=1.0)


def _torch_loss(torch: Any, a: Any) -> Call | None:
    """Loss and gradient; autograd cannot be captured in a CUDA graph."""
    if a.logits.is_cuda:
        return None
    labels = labels_of(a.logits)
    leaf = a.logits.detach().requires_grad_()

    def call() -> Any:
        loss = torch.nn.functional.cross_entropy(leaf, labels, reduction="sum")
        return torch.autograd.grad(loss, leaf)

    return call


def _formula_of_loss(np: Any, a: Any, wide: Any) -> Any:
    logits = a.logits.astype(wide)
    rows, labels = np.arange(logits.shape[0]), labels_of(a.logits, np)
    top = logits.max(-1, keepdims=True)
    power = np.exp(logits - top)
    total = power.sum(-1, keepdims=True)
    loss = (np.log(total) + top)[:, 0] - logits[rows, labels]
    here = np.arange(logits.shape[1]) == labels[:, None]
    return loss, (power / total - here).astype(a.logits.dtype)


def _ours_loss_backward(a: Any) -> Call:
    labels = labels_of(a.logits)
    _, lse = membound.cross_entropy(a.logits, labels, return_lse=True)
    arrays = (1.0, a.logits, labels, lse)
    return partial(membound.cross_entropy_backward, *arrays, dlogits=a.dlogits)


def _torch_loss_backward(torch: Any, a: Any) -> Call | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.logits.is_cuda:
        return None
    leaf = a.logits.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, labels_of(a.logits), reduction="sum")
    return partial(torch.autograd.grad, loss, leaf, retain_graph=True)


def _formula_of_loss_gradient(np: Any, a: Any, wide: Any) -> Any:
    return _formula_of_loss(np, a, wide)[1]


def _ours(a: Any) -> Call:
    return partial(membound.softmax, a.x, out=a.out)


def _torch_call(torch: Any, a: Any) -> Call:
    return lambda: torch.softmax(a.x, -1)


def _formula(np: Any, a: Any, wide: Any) -> Any:
    x = a.x.astype(wide)
    power = np.exp(x - x.max(-1, keepdims=True))
    return (power / power.sum(-1, keepdims=True)).astype(a.x.dtype)


def _ours_backward(a: Any) -> Call:
    return partial(membound.softmax_backward, a.dy, a.y, dx=a.dx)


def _torch_backward(torch: Any, a: Any) -> Call:
    backward = torch._softmax_backward_data
    return lambda: backward(a.dy, a.y, -1, a.y.dtype)


def _formula_of_gradient(np: Any, a: Any, wide: Any) -> Any:  # noqa: ARG001 - NumPy's functions are not needed
    dy, y = a.dy.astype(wide), a.y.astype(wide)
    return (y * (dy - (dy * y).sum(-1, keepdims=True))).astype(a.y.dtype)


OPS = (
    Op("cross_entropy", ("logits",), ("dlogits",), _ours_loss, _torch_loss, _formula_of_loss),
    Op(
        "cross_entropy_backward",
        ("logits",),
        ("dlogits",),
        _ours_loss_backward,
        _torch_loss_backward,
        _formula_of_loss_gradient,
    ),
    Op("softmax", ("x",), ("out",), _ours, _torch_call, _formula),
    Op(
        "softmax_backward",
        ("dy", "y"),
        ("dx",),
        _ours_backward,
        _torch_backward,
        _formula_of_gradient,
    ),
)

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""unsloth's kernels by name."""

from __future__ import annotations

from typing import Any

import torch

import membound
from membound.torch._adapters import adapter, own_names
from membound.torch._cross_entropy import cross_entropy
from membound.torch._gated_activation import gated_activation
from membound.torch._layer_norm import layer_norm
from membound.torch._rms_norm import rms_norm
from membound.torch._rope import rope


def _eps(module):
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps


@adapter(x="X")
def fast_rms_layernorm(layernorm, X, gemma=False):
    """RMSNorm of X with the weight and eps of a module; gemma adds one to the weight.

    >>> import torch
    >>> norm = torch.nn.RMSNorm(2, eps=12.5)
    >>> fast_rms_layernorm(norm, torch.tensor([[3.0, 4.0]])).detach().mul(10).round().tolist()
    [[6.0, 8.0]]
    """
    options = {"weight_offset": 1.0} if gemma else {"rounding": "before_weight"}
    return rms_norm(X, layernorm.weight, eps=_eps(layernorm), **options)


@adapter(x="X")
def fast_layernorm(layernorm, X):
    """LayerNorm of X with the weight, bias and eps of a module."""
    return layer_norm(X, layernorm.weight, layernorm.bias, eps=_eps(layernorm))


@adapter(q="Q", k="K", position_ids="rope_embedding_indices")
def fast_rope_embedding(Q, K, cos, sin, rope_embedding_indices=None):
    """Rotate Q and K, ``(batch, heads, seq, head_dim)``, by tables of ``(positions, dim)``.

    rope_embedding_indices: the position of each token, ``(batch, seq)``.
    """
    positions = None
    if rope_embedding_indices is not None:
        positions = rope_embedding_indices.reshape(Q.shape[0], Q.shape[2])
    tables = _rows(cos), _rows(sin)
    return rope(Q, K, *tables, layout="bhsd", position_ids=positions, rotary_dim=Q.shape[-1])


def _rows(table):
    """Tables come with axes of extent 1 in front, or without."""
    return table.reshape(table.shape[-2:]) if table.dim() > 2 else table


@adapter(q="Q", k="K", out="Q", k_out="K")
def inplace_rope_embedding(Q, K, cos, sin, position_ids):
    """:func:`fast_rope_embedding` over Q and K, where no gradient is recorded; returns both.

    Axes: ``(batch, heads, seq, head_dim)``, or with position_ids of ``(batch, seq)``
    ``(batch, seq, heads, head_dim)``.
    """
    layout = "bhsd" if position_ids is None else "bshd"
    options = {"layout": layout, "rotary_dim": Q.shape[-1], "position_ids": position_ids}
    return rope(Q, K, _rows(cos), _rows(sin), out=Q, k_out=K, **options)


@adapter()
def fast_cross_entropy_loss(logits, labels, logit_softcapping=0, logit_scaling=0, n_items=None):
    """The sum of the losses of rows that count (labels not -100), divided by n_items.

    n_items: a number or a tensor; None: how many count. logit_scaling multiplies logits first.
    """
    scaled = logits * logit_scaling if logit_scaling else logits
    total = cross_entropy(scaled, labels, softcap=logit_softcapping or None, reduction="sum")
    if n_items is None:
        n_items = torch.count_nonzero(labels != -100)
    elif isinstance(n_items, torch.Tensor):
        n_items = n_items.to(logits.device)
    return total / n_items


@adapter(gate="e", up="g")
def swiglu_fg_kernel(e, g):
    """``silu(e) * g``."""
    return gated_activation(e, g)


@adapter(gate="gate", up="up")
def geglu_exact_forward_kernel(gate, up):
    """``gelu(gate) * up``."""
    return gated_activation(gate, up, kind="gelu")


@adapter(gate="gate", up="up")
def geglu_approx_forward_kernel(gate, up):
    """``gelu(gate, 'tanh') * up``."""
    return gated_activation(gate, up, kind="gelu_tanh")


def _backward(name: str, kind: str) -> Any:
    def call(DW, e, g):
        h = membound.gated_activation(e, g, kind=kind)
        membound.gated_activation_backward(DW, e, g, kind=kind, dgate=g, dup=e)
        return DW.copy_(h), e, g

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (
        "Write the activation into DW, the gradient of the second factor into e and that of what "
        "is activated into g, and return the three."
    )
    return adapter(dy="DW", gate="e", up="g", dgate="g", dup="e")(call)


swiglu_DWf_DW_dfg_kernel = _backward("swiglu_DWf_DW_dfg_kernel", "silu")
geglu_exact_backward_kernel = _backward("geglu_exact_backward_kernel", "gelu")
geglu_approx_backward_kernel = _backward("geglu_approx_backward_kernel", "gelu_tanh")

__all__ = list(own_names(globals()))

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations with an 8-bit result. They have no gradient; graphs contain an operator."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.torch._functions import traceable
from membound.torch._gated_activation import resolved
from membound.torch._operators import define_without_gradient, signature_of
from membound.torch._rms_norm_quant import code_name, scales_like
from membound.torch._schemas import SCHEMAS

_OPTIONS = SCHEMAS["gated_activation_quant"]["options"]


def _kernel(gate: Any, up: Any, row_scale: Any, scale: Any, *options: Any) -> Any:
    """The extension's function; with a static scale the scales are an empty tensor."""
    named = dict(zip(_OPTIONS, options, strict=True))
    found = _core.gated_activation_quant(gate, up, row_scale=row_scale, scale=scale, **named)
    return found if scale is None else (found, scale.new_empty(0))


def _shapes(
    gate: Any, up: Any, _row_scale: Any, scale: Any, _kind: Any, packing: str, dtype: str,
    group_size: int | None, *_: Any,
) -> Any:  # fmt: skip
    halved = up is None and packing != "gate"
    cols = gate.shape[-1] // 2 if halved else gate.shape[-1]
    codes = gate.new_empty((*gate.shape[:-1], cols), dtype=getattr(torch, dtype))
    return codes, scales_like(codes, group_size) if scale is None else scale.new_empty(0)


_GATED_ACTIVATION_QUANT = define_without_gradient(
    "gated_activation_quant", signature_of("gated_activation_quant"), _kernel, _shapes
)


@traceable("out", "scale_out")
def gated_activation_quant(
    gate, up=None, *, kind="silu", packing="halves", dtype=None, scale=None, group_size=None,
    scale_upper_bound=None, alpha=None, limit=None, up_offset=0.0, row_scale=None,
):  # fmt: skip
    """:func:`membound.gated_activation_quant` for compiled code too.

    >>> import torch
    >>> gate_up = torch.tensor([[1.0, -1.0, 3.0, 4.0]])
    >>> codes, scale = gated_activation_quant(gate_up, kind="relu2", dtype="int8")
    >>> codes.tolist()
    [[127, 0]]
    """
    kind, alpha, limit = resolved(kind, alpha, limit)
    codes, scales = _GATED_ACTIVATION_QUANT(
        gate, up, row_scale, scale, kind, packing, code_name(dtype), group_size, scale_upper_bound,
        alpha, limit, up_offset,
    )  # fmt: skip
    return (codes, scales) if scale is None else codes


@traceable("out", "scale_out")
def silu_and_mul_quant(
    gate, up=None, *, packing="halves", dtype=None, scale=None, group_size=None,
    scale_upper_bound=None, alpha=1.0, limit=None, up_offset=0.0, row_scale=None,
):  # fmt: skip
    """:func:`membound.silu_and_mul_quant` for compiled code too.

    >>> import torch
    >>> codes, scale = silu_and_mul_quant(torch.tensor([[1.0, -1.0, 3.0, 4.0]]), dtype="int8")
    >>> codes.tolist()
    [[127, -62]]
    """
    codes, scales = _GATED_ACTIVATION_QUANT(
        gate, up, row_scale, scale, "silu", packing, code_name(dtype), group_size,
        scale_upper_bound, alpha, limit, up_offset,
    )  # fmt: skip
    return (codes, scales) if scale is None else codes

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm with an 8-bit result. It has no gradient; graphs contain operators."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.arrays import dtype_name
from membound.torch._functions import traceable
from membound.torch._operators import contiguous_like, define_without_gradient, signature_of
from membound.torch._schemas import SCHEMAS

_OPTIONS = SCHEMAS["rms_norm_quant"]["options"]


def code_name(dtype: Any) -> str | None:
    return "float8_e4m3fn" if dtype is None else dtype_name(dtype)


def scales_like(x: Any, group_size: int | None) -> Any:
    groups = () if group_size is None else (-(-x.shape[-1] // group_size),)
    return x.new_empty((*x.shape[:-1], *groups), dtype=torch.float32)


def _kernel(function: Any, arrays: int) -> Any:
    """The extension's function; with a static scale the scales are an empty tensor."""

    def kernel(*arguments):
        scale, options = arguments[arrays], arguments[arrays + 1 :]
        found = function(
            *arguments[:arrays], scale=scale, **dict(zip(_OPTIONS, options, strict=True))
        )
        if scale is None:
            return found
        return (*(found if arrays == 3 else (found,)), scale.new_empty(0))

    return kernel


def _shapes(arrays: int) -> Any:
    def shapes(*arguments):
        x, scale, dtype, group_size = arguments[0], *arguments[arrays : arrays + 3]
        codes = torch.empty_like(
            x, dtype=getattr(torch, dtype), memory_format=torch.contiguous_format
        )
        scales = scales_like(x, group_size) if scale is None else scale.new_empty(0)
        return (codes, contiguous_like(x), scales) if arrays == 3 else (codes, scales)

    return shapes


def _operator(name: str, arrays: int) -> Any:
    kernel = _kernel(getattr(_core, name), arrays)
    return define_without_gradient(name, signature_of(name), kernel, _shapes(arrays))


_RMS_NORM_QUANT = _operator("rms_norm_quant", 2)
_ADD_RMS_NORM_QUANT = _operator("add_rms_norm_quant", 3)


@traceable("out", "scale_out")
def rms_norm_quant(
    x, weight=None, *, dtype=None, scale=None, group_size=None, scale_upper_bound=None,
    eps=1e-6, weight_offset=0.0, rounding="once",
):  # fmt: skip
    """:func:`membound.rms_norm_quant` for compiled code too.

    >>> import torch
    >>> codes, scale = rms_norm_quant(torch.tensor([[3.0, 4.0]]), dtype="int8", eps=12.5)
    >>> codes.tolist()
    [[95, 127]]
    """
    options = code_name(dtype), group_size, scale_upper_bound, eps, weight_offset, rounding
    codes, scales = _RMS_NORM_QUANT(x, weight, scale, *options)
    return (codes, scales) if scale is None else codes


@traceable("out", "residual_out", "scale_out")
def add_rms_norm_quant(
    x, residual, weight=None, *, dtype=None, scale=None, group_size=None,
    scale_upper_bound=None, eps=1e-6, weight_offset=0.0, rounding="once",
):  # fmt: skip
    """:func:`membound.add_rms_norm_quant` for compiled code too.

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    >>> codes, total, scale = add_rms_norm_quant(x, residual, dtype="int8", eps=12.5)
    >>> codes.tolist(), total.tolist()
    ([[95, 127]], [[3.0, 4.0]])
    """
    options = code_name(dtype), group_size, scale_upper_bound, eps, weight_offset, rounding
    found = _ADD_RMS_NORM_QUANT(x, residual, weight, scale, *options)
    return found if scale is None else found[:2]

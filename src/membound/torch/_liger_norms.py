# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel's norms by name; liger.py exports them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from membound.torch import _modules
from membound.torch._adapters import adapter, choose
from membound.torch._layer_norm import layer_norm
from membound.torch._rms_norm import add_rms_norm, rms_norm

# In Liger-Kernel "none" computes in the rows' dtype; here it uses float32, as "gemma" does.
_ROUNDINGS = {"llama": "before_weight", "gemma": "once", "none": "once"}


def _casting(function: str, casting_mode: str, offset: float) -> dict[str, Any]:
    """Translate a casting mode and an offset; no model combines Llama's rounding and an offset."""
    rounding = choose(function, "casting_mode", casting_mode, _ROUNDINGS)
    return {"weight_offset": offset, "rounding": rounding}


@adapter(x="X", weight="W", weight_offset="offset", rounding="casting_mode")
def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """RMSNorm of X with the weight ``W + offset``.

    >>> import torch
    >>> x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])
    >>> liger_rms_norm(x, weight, 12.5).mul(10).round().tolist()
    [[6.0, 16.0]]
    """
    return rms_norm(X, W, eps=eps, **_casting("liger_rms_norm", casting_mode, offset))


@adapter(x="X", residual="R", weight="W", weight_offset="offset", rounding="casting_mode")
def liger_fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """RMSNorm of ``X + R``, and the sum."""
    options = _casting("liger_fused_add_rms_norm", casting_mode, offset)
    return add_rms_norm(X, R, W, eps=eps, **options)


@adapter(x="X", weight="W", bias="B")
def liger_layer_norm(X, W, B, eps):
    """LayerNorm of X with the weight W and the bias B."""
    return layer_norm(X, W, B, eps=eps)


def _initial(function: str, init_fn: str) -> float:
    return choose(function, "init_fn", init_fn, {"ones": 1.0, "zeros": 0.0})


class LigerRMSNorm(_modules.RMSNorm):
    """RMSNorm with ``weight + offset``; the weight starts at 1 or 0, as init_fn says."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=True, row_mode=None, elementwise_affine=True,
    ):  # fmt: skip
        name = type(self).__name__
        self._start = _initial(name, init_fn)
        options = _casting(name, casting_mode, offset)
        super().__init__(hidden_size, eps, elementwise_affine, **options)
        self.offset = offset
        self.casting_mode = casting_mode
        self.in_place = in_place
        self.row_mode = row_mode

    @property
    def variance_epsilon(self):
        """The name that models have for eps."""
        return self.eps

    def reset_parameters(self):
        """Reset the weight as init_fn says."""
        if self.weight is not None:
            nn.init.constant_(self.weight, self._start)

    @adapter("LigerRMSNorm", x="hidden_states")
    def forward(self, hidden_states):
        return super().forward(hidden_states)


class LigerRMSNormForGemma(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=True, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma2(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma 2."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma3(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma 3."""

    def __init__(
        self, dim, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=False,
    ):  # fmt: skip
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma 4."""

    def __init__(
        self, dim, eps=1e-6, offset=0.0, casting_mode="gemma", init_fn="ones",
        in_place=False, with_scale=True,
    ):  # fmt: skip
        super().__init__(
            dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale
        )


class LigerRMSNormForOlmo2(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of OLMo 2."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGlm4(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of GLM-4."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForQwen3Next(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Qwen3-Next."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerFusedAddRMSNorm(LigerRMSNorm):
    """RMSNorm of ``hidden_states + residual``, and the sum."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=False,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place)

    @adapter(x="hidden_states")
    def forward(self, hidden_states, residual):
        return _modules.RMSNorm.forward(self, hidden_states, residual)


class LigerLayerNorm(nn.Module):
    """LayerNorm with a bias that is always there: random with ``bias=True``, else 0."""

    def __init__(
        self, hidden_size, eps=1e-6, bias=False, init_fn="ones", impl=None, mode=None, backend=None
    ):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = self.variance_epsilon = eps
        start = _initial("LigerLayerNorm", init_fn)
        self.weight = nn.Parameter(torch.full((hidden_size,), start))
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))

    @adapter(x="hidden_states")
    def forward(self, hidden_states):
        return layer_norm(hidden_states, self.weight, self.bias, eps=self.variance_epsilon)

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Layers whose `forward` replaces that of a transformers module; `self` is then that module.

They have no state and no other methods, as `kernels` requires. They record gradients and compile
without a graph break.
"""

from __future__ import annotations

from torch import nn

from membound.torch._rms_norm import rms_norm
from membound.torch.huggingface import apply_rotary_pos_emb


def _eps(module: nn.Module) -> float:
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps


class RMSNorm(nn.Module):
    """RMSNorm of the Llama family: rounded before the weight, bit for bit as its modules."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states):
        return rms_norm(hidden_states, self.weight, eps=_eps(self), rounding="before_weight")


class RMSNormRoundedOnce(nn.Module):
    """RMSNorm of OLMo 2, gpt-oss and others: computed in float32 and rounded once."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states):
        return rms_norm(hidden_states, self.weight, eps=_eps(self), rounding="once")


class RotaryPosEmb(nn.Module):
    """The models' `apply_rotary_pos_emb`, in one launch."""

    can_torch_compile = True
    has_backward = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)

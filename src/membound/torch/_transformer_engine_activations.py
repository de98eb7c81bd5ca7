# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Transformer Engine's activations by name; transformer_engine.py exports them."""

from __future__ import annotations

from typing import Any

from torch import nn

from membound.torch._adapters import adapter, choose
from membound.torch._gated_activation import gated_activation


def _activation(name: str, formula: str, **options: Any) -> Any:
    def __init__(self, *, cache_quantized_input=False):  # noqa: N807 - it is one
        nn.Module.__init__(self)
        self.cache_quantized_input = cache_quantized_input

    @adapter(name, gate="input")
    def forward(self, input):
        return gated_activation(input, **options)

    text = f"``{formula}``; cache_quantized_input is taken and ignored: nothing is quantised."
    body = {"__init__": __init__, "forward": forward, "__doc__": text, "__module__": __name__}
    return type(name, (nn.Module,), body)


GLU = _activation("GLU", "sigmoid(gate) * up", kind="sigmoid")
GEGLU = _activation("GEGLU", "gelu(gate, 'tanh') * up", kind="gelu_tanh")
QGEGLU = _activation("QGEGLU", "gate * sigmoid(1.702 * gate) * up", alpha=1.702)
SReGLU = _activation("SReGLU", "relu(gate) ** 2 * up", kind="relu2")
ReGLU = _activation("ReGLU", "relu(gate) * up", kind="relu")
GELU = _activation("GELU", "gelu(input, 'tanh')", kind="gelu_tanh", packing="gate")
QGELU = _activation("QGELU", "input * sigmoid(1.702 * input)", alpha=1.702, packing="gate")
SReLU = _activation("SReLU", "relu(input) ** 2", kind="relu2", packing="gate")
ReLU = _activation("ReLU", "relu(input)", kind="relu", packing="gate")
SiLU = _activation("SiLU", "silu(input)", packing="gate")

_PACKINGS = {None: "halves", 1: "interleaved"}  # gate and up interleaved in blocks of this size


class SwiGLU(nn.Module):
    """``silu(gate) * up`` of halves, or of pairs with ``glu_interleave_size=1``."""

    def __init__(self, *, cache_quantized_input=False, glu_interleave_size=None):
        super().__init__()
        self.glu_interleave_size = glu_interleave_size
        given = "SwiGLU", "glu_interleave_size", glu_interleave_size, _PACKINGS
        self._options = {"packing": choose(*given)}

    @adapter(gate="input")
    def forward(self, input):
        return gated_activation(input, **self._options)


class ClampedSwiGLU(nn.Module):
    """gpt-oss's activation: gate and up clamped, ``glu_linear_offset`` added to up."""

    def __init__(
        self, *, limit=7.0, alpha=1.702, glu_linear_offset=1.0, cache_quantized_input=False,
        glu_interleave_size=None,
    ):  # fmt: skip
        super().__init__()
        given = "ClampedSwiGLU", "glu_interleave_size", glu_interleave_size, _PACKINGS
        self._options = {
            "packing": choose(*given), "limit": limit, "alpha": alpha,
            "up_offset": glu_linear_offset,
        }  # fmt: skip

    @adapter(gate="input", up_offset="glu_linear_offset")
    def forward(self, input):
        return gated_activation(input, **self._options)


class SiTUGLU(nn.Module):
    """Kimi K3's activation: silu of gate and up, each bounded by a soft cap, beta1 and beta2."""

    def __init__(
        self, *, beta1=4.0, beta2=25.0, cache_quantized_input=False, glu_interleave_size=None
    ):
        super().__init__()
        self.beta1 = float(beta1)
        self.beta2 = float(beta2)
        given = "SiTUGLU", "glu_interleave_size", glu_interleave_size, _PACKINGS
        self._options = {"packing": choose(*given), "alpha": self.beta1, "limit": self.beta2}

    @adapter(gate="input", alpha="beta1", limit="beta2")
    def forward(self, input):
        return gated_activation(input, kind="situ", **self._options)

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Modules with the parameters and constructor arguments of torch.nn and Hugging Face."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from membound._rope_table import rope_frequencies
from membound.torch._embedding import embedding
from membound.torch._gated_activation import gated_activation
from membound.torch._layer_norm import add_layer_norm, layer_norm
from membound.torch._norm_call import default_eps
from membound.torch._operators import check_tensor
from membound.torch._rms_norm import add_rms_norm, rms_norm, rms_norm_gated
from membound.torch._rope import rope


def _axes(normalized_shape: Any) -> tuple[int, ...]:
    """The shape of the normalised last axes."""
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def _over(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The normalized_shape option; a single axis needs none."""
    return None if len(shape) == 1 else shape


def _parameter(module: nn.Module, name: str) -> Any:
    """A parameter: a microsecond less than as an attribute, which finds computed ones too."""
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


class RMSNorm(nn.Module):
    """Root mean square normalisation of the last axes, with a weight.

    In place of torch.nn.RMSNorm and of the models' own (``LlamaRMSNorm(hidden_size, eps)``); the
    state dict is theirs.

    Args:
        normalized_shape: the size of the last axis, or a tuple of the last axes, which are
            normalised as one; their strides must join.
        eps: added to the mean of squares. None: torch.nn's default, 2^-23 (2^-52 for float64).
        elementwise_affine: with a weight.
        device, dtype: of the weight.
        weight_offset: added to the weight; 1.0 as in Gemma, whose weights start at 0.
        rounding: see :func:`membound.rms_norm`; ``"before_weight"`` gives the bits of Llama's.

    torch.fx.symbolic_trace of it alone needs ``concrete_args={"residual": None}`` for no residual.

    >>> import torch
    >>> norm = RMSNorm(2, eps=0.0)
    >>> norm
    RMSNorm((2,), eps=0.0)
    >>> y, residual = norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
    >>> residual.tolist()
    [[3.0, 4.0]]
    """

    def __init__(
        self, normalized_shape, eps: float | None = 1e-6, elementwise_affine: bool = True,
        device=None, dtype=None, *, weight_offset: float = 0.0, rounding: str = "once",
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _axes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight_offset = weight_offset if elementwise_affine else 0.0
        self.rounding = rounding
        weight = None
        if elementwise_affine:
            weight = nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))
        self.register_parameter("weight", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weight such that it multiplies by 1."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def forward(self, x, residual=None):
        """The norm of x; with a residual the norm of their sum, and the sum."""
        eps = default_eps(x) if self.eps is None else self.eps
        options = {
            "eps": eps, "weight_offset": self.weight_offset, "rounding": self.rounding,
            "normalized_shape": _over(self.normalized_shape),
        }  # fmt: skip
        weight = _parameter(self, "weight")
        if residual is None:
            return rms_norm(x, weight, **options)
        return add_rms_norm(x, residual, weight, **options)

    def extra_repr(self) -> str:
        parts = [f"{self.normalized_shape}, eps={self.eps}"]
        if not self.elementwise_affine:
            parts.append("elementwise_affine=False")
        if self.weight_offset:
            parts.append(f"weight_offset={self.weight_offset}")
        if self.rounding != "once":
            parts.append(f"rounding={self.rounding!r}")
        return ", ".join(parts)


class LayerNorm(nn.Module):
    """Layer normalisation of the last axes, in place of torch.nn.LayerNorm.

    Args:
        normalized_shape: the size of the last axis, or a tuple of the last axes, which are
            normalised as one; their strides must join.
        eps: added to the variance.
        elementwise_affine: with a weight, and with ``bias`` a bias.
        bias: see there.
        device, dtype: of weight and bias.
        weight_offset: added to the weight, which then starts at 1 less.

    torch.fx.symbolic_trace of it alone needs ``concrete_args={"residual": None}`` for no residual.

    >>> import torch
    >>> LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(
        self, normalized_shape, eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device=None, dtype=None, *, weight_offset: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _axes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight_offset = weight_offset if elementwise_affine else 0.0
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            values = torch.empty(self.normalized_shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(values) if wanted else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weight such that it multiplies by 1, and the bias to 0."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.weight_offset)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x, residual=None):
        """The norm of x; with a residual the norm of their sum, and the sum."""
        options = {
            "eps": self.eps, "weight_offset": self.weight_offset,
            "normalized_shape": _over(self.normalized_shape),
        }  # fmt: skip
        weight, bias = _parameter(self, "weight"), _parameter(self, "bias")
        if residual is None:
            return layer_norm(x, weight, bias, **options)
        return add_layer_norm(x, residual, weight, bias, **options)

    def extra_repr(self) -> str:
        offset = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}{offset}"
        )


class GatedRMSNorm(nn.Module):
    """RMSNorm with a gate: ``norm(x) * silu(z)``; ``norm_before_gate=False``: of the product.

    The first as in Qwen3-Next's gated attention, the second as in Mamba-2; weights and eps are
    named as theirs.

    >>> import torch
    >>> GatedRMSNorm(2)(torch.ones(1, 2), torch.zeros(1, 2)).tolist()
    [[0.0, 0.0]]
    """

    def __init__(
        self, hidden_size, eps: float = 1e-6, device=None, dtype=None, *,
        norm_before_gate: bool = True, rounding: str = "once",
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.norm_before_gate = norm_before_gate
        self.rounding = rounding
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weight to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x, gate=None):
        """Without a gate the norm alone, as the models' modules do."""
        if gate is None:
            return rms_norm(x, self.weight, eps=self.eps, rounding=self.rounding)
        return rms_norm_gated(
            x, gate, self.weight, norm_before_gate=self.norm_before_gate, eps=self.eps,
            rounding=self.rounding,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, norm_before_gate={self.norm_before_gate}"


class Embedding(nn.Embedding):
    """Rows of a table by ids, in place of torch.nn.Embedding; every run gives the same gradient.

    Args:
        num_embeddings, embedding_dim, padding_idx, device, dtype: torch.nn.Embedding's.
        scale: multiplies the rows; Gemma's models take the root of embedding_dim.

    Ids outside of the table raise on the CPU; on a GPU they give zeros, and nothing is read.

    >>> import torch
    >>> Embedding(4, 2, padding_idx=0)(torch.tensor([[0, 3]])).shape
    torch.Size([1, 2, 2])
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        device=None, dtype=None, *, scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.scale = scale

    @classmethod
    def from_pretrained(
        cls, embeddings, freeze: bool = True, padding_idx: int | None = None, *, scale: float = 1.0
    ) -> Embedding:
        """A module whose table is the tensor given; frozen unless told otherwise.

        >>> import torch
        >>> Embedding.from_pretrained(torch.eye(2))(torch.tensor([1])).tolist()
        [[0.0, 1.0]]
        """
        if embeddings.dim() != 2:
            raise ValueError(
                "Embedding: argument 'embeddings' must have two axes, got shape "
                f"{tuple(embeddings.shape)}"
            )
        module = cls(*embeddings.shape, padding_idx, device="meta", scale=scale)
        module.weight = nn.Parameter(embeddings, requires_grad=not freeze)
        return module

    def forward(self, input):  # noqa: A002 - torch.nn's name
        if not hasattr(input, "__torch_function__"):  # torch.fx's proxies have it too
            check_tensor("embedding", "ids", input)
        return embedding(
            input, self.weight, padding_idx=self.padding_idx, scale=self.scale,
            validate=input.device.type == "cpu",
        )  # fmt: skip

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", scale={self.scale}" if self.scale != 1.0 else "")


class GatedActivation(nn.Module):
    """``act(gate) * up`` of two tensors, or of one that holds both.

    Args:
        kind: ``"silu"`` (SwiGLU), ``"gelu_tanh"`` (GeGLU), ``"relu"`` or another, by the name that
            configurations of models have for it: see :func:`membound.gated_activation`.
        options: as of :func:`membound.gated_activation`: packing, alpha, limit, up_offset.

    >>> import torch
    >>> GatedActivation("relu2")(torch.tensor([[0.0, 1.0, 2.0, 3.0]])).tolist()
    [[0.0, 3.0]]
    """

    def __init__(self, kind: str = "silu", **options: Any) -> None:
        super().__init__()
        self.kind = kind
        self.options = options

    def forward(self, gate, up=None):
        return gated_activation(gate, up, kind=self.kind, **self.options)

    def extra_repr(self) -> str:
        return ", ".join([self.kind, *(f"{k}={v!r}" for k, v in self.options.items())])


class RotaryEmbedding(nn.Module):
    """Rotary embedding with angles computed in the kernel, right up to 16 million positions.

    Args:
        head_dim: elements of a head.
        rope_parameters: the dictionary that model configurations carry; None for the default.
        max_position: how long sequences are, for the types that ask.
        layer_type: as of :func:`membound.rope_frequencies`.
        layout, interleaved: as of :func:`membound.rope`.
        device: of the frequencies. They are a buffer that state dicts leave out, as the models' is,
            and stay in float32 whatever the module is cast to.

    >>> import torch
    >>> rotary = RotaryEmbedding(4, {"rope_theta": 100.0})
    >>> q, k = rotary(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> q[0, 0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self, head_dim: int, rope_parameters=None, max_position: int = 0, *, layout: str = "bshd",
        interleaved: bool = False, layer_type: str | None = None, device=None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head_dim = head_dim
        self.layer_type = layer_type
        self.layout = layout
        self.interleaved = interleaved
        self.rope_parameters = rope_parameters
        self.max_position = max_position
        frequencies, self.attention_scaling = self._frequencies()
        values = torch.tensor(frequencies, dtype=torch.float32, device=device)
        self.register_buffer("inv_freq", values, persistent=False)

    def _frequencies(self) -> tuple[Any, float]:
        return rope_frequencies(
            self.rope_parameters, self.head_dim, self.max_position, layer_type=self.layer_type
        )

    def reset_parameters(self) -> None:
        """Recompute the frequencies on their device."""
        frequencies, self.attention_scaling = self._frequencies()
        device = self.inv_freq.device
        self.inv_freq = torch.tensor(frequencies, dtype=torch.float32, device=device)

    def _apply(self, fn, recurse=True):
        """Move the frequencies without casts; recompute them when they leave the meta device."""
        before = self.inv_freq
        super()._apply(fn, recurse)
        if before.is_meta and not self.inv_freq.is_meta:
            self.reset_parameters()
        elif self.inv_freq.dtype != torch.float32:
            self.inv_freq = before.to(self.inv_freq.device)
        return self

    def forward(self, q, k=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None):
        """The rotated q, or the pair of q and k."""
        return rope(
            q, k, freqs=self.inv_freq, position_ids=position_ids, seqlen_offsets=seqlen_offsets,
            cu_seqlens=cu_seqlens, layout=self.layout, interleaved=self.interleaved,
            attention_scaling=self.attention_scaling,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.head_dim}, layout={self.layout!r}, interleaved={self.interleaved}"

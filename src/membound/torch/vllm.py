# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""vLLM's operators and layers by name.

Those of ``vllm._custom_ops`` and ``torch.ops._C`` write into tensors that are given, layers return.
"""

from __future__ import annotations

from typing import Any

import torch

from membound.torch import _modules
from membound.torch._adapters import adapter, heads_of, layer, own_names, refuse
from membound.torch._embedding import embedding
from membound.torch._gated_activation import gated_activation
from membound.torch._gated_activation_quant import gated_activation_quant
from membound.torch._qk_norm_rope import qk_norm_rope
from membound.torch._rms_norm import add_rms_norm
from membound.torch._rms_norm import fused_add_rms_norm as _fused_add_rms_norm
from membound.torch._rms_norm import rms_norm as _rms_norm
from membound.torch._rms_norm_quant import add_rms_norm_quant, rms_norm_quant
from membound.torch._rope import rope

_GELU_NEW = {"kind": "gelu_tanh"}
_QUICK_GELU = {"kind": "silu", "alpha": 1.702}  # x * sigmoid(1.702 * x)


@adapter(q="query", k="key", cos="cos_sin_cache", position_ids="positions", out="query",
         k_out="key", rotary_offset="rope_dim_offset")  # fmt: skip
def rotary_embedding(
    positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False
):
    """Rotate query and key in place.

    Args:
        positions: ``(tokens,)`` or ``(batch, seq)``, int32 or int64.
        query: ``(..., heads * head_size)`` or ``(..., heads, head_size)`` with the axes of
            positions in front; its rows may be a slice of a wider tensor.
        key: the same but for the number of heads; None: query alone.
        head_size: elements of a head.
        cos_sin_cache: ``(max_position, rotary_dim)``: all cosines, then all sines.
        is_neox: pairs are halves of the head; False: adjacent.
        rope_dim_offset: the first element of a head that is rotated.
        inverse: rotate in the opposite direction.

    >>> import torch
    >>> query = torch.ones(1, 4)
    >>> rotary_embedding(torch.tensor([0]), query, None, 4, torch.tensor([[0.0, 1.0]]), True)
    >>> query.tolist()
    [[-1.0, 1.0, 1.0, 1.0]]
    """
    q, k = (heads_of(t, positions, head_size) for t in (query, key))
    rope(
        q, k, cos_sin_cache, None, position_ids=positions.flatten(), layout="thd",
        interleaved=not is_neox, rotary_dim=cos_sin_cache.shape[-1], rotary_offset=rope_dim_offset,
        inverse=inverse, out=q, k_out=k,
    )  # fmt: skip


@adapter(x="input", eps="epsilon")
def rms_norm(out, input, weight, epsilon):
    """RMSNorm of input, written into out; weight may be None.

    >>> import torch
    >>> out = torch.empty(1, 2)
    >>> rms_norm(out, torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 12.5)
    >>> out.mul(10).round().tolist()
    [[6.0, 16.0]]
    """
    _rms_norm(input, weight, eps=epsilon, out=out)


@adapter(x="input", eps="epsilon")
def fused_add_rms_norm(input, residual, weight, epsilon):
    """Write ``input + residual`` into residual and its RMSNorm into input; weight may be None."""
    if weight is None:
        add_rms_norm(input, residual, eps=epsilon, out=input, residual_out=residual)
    else:
        _fused_add_rms_norm(input, residual, weight, epsilon)


@adapter(x="input", eps="epsilon", out="result")
def rms_norm_weightless(result, input, epsilon):
    """:func:`rms_norm` without a weight."""
    _rms_norm(input, eps=epsilon, out=result)


@adapter(x="input", eps="epsilon")
def fused_add_rms_norm_weightless(input, residual, epsilon):
    """:func:`fused_add_rms_norm` without a weight."""
    add_rms_norm(input, residual, eps=epsilon, out=input, residual_out=residual)


@adapter(q="qkv", k="qkv", out="qkv", k_out="qkv", cos="cos_sin_cache")
def fused_qk_norm_rope(
    qkv, num_heads_q, num_heads_k, num_heads_v, head_dim, eps, q_weight, k_weight, cos_sin_cache,
    is_neox, position_ids, forced_token_heads_per_warp=-1,
):  # fmt: skip
    """RMSNorm of each head of q and k in ``(tokens, heads * head_dim)``, and rotation, in place.

    ``forced_token_heads_per_warp`` is taken and ignored: it chooses a launch, not a result.
    """
    heads = qkv.view(*qkv.shape[:-1], num_heads_q + num_heads_k + num_heads_v, head_dim)
    heads = heads.view(-1, *heads.shape[-2:])
    q, k = heads[:, :num_heads_q], heads[:, num_heads_q : num_heads_q + num_heads_k]
    qk_norm_rope(
        q, k, q_weight, k_weight, cos_sin_cache, None, eps=eps, layout="thd",
        interleaved=not is_neox, rotary_dim=cos_sin_cache.shape[-1],
        position_ids=position_ids.flatten(), out=q, k_out=k,
    )  # fmt: skip


def _upper_bound(function: str, scale_ub: Any, dtype: Any) -> float | None:
    """Theirs bounds the largest value of a row, ours its scale, and is a number of the launch."""
    if scale_ub is None:
        return None
    if isinstance(scale_ub, torch.Tensor):
        refuse(function, "scale_ub", scale_ub, None, "pass the number itself (scale_ub.item())")
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return scale_ub / limits.max


def _rows_of_scales(input: Any, groups: int, transposed: bool, alignment: int) -> Any:
    """Room for (rows, groups) scales, by rows or, for kernels that read them so, by columns."""
    rows = input.numel() // input.shape[-1]
    if not transposed:
        return input.new_empty((rows, groups), dtype=torch.float32)
    length = rows if alignment == 0 else -(-rows // alignment) * alignment
    return input.new_empty((groups, length), dtype=torch.float32).T[:rows]


@adapter(x="input", eps="epsilon", dtype="quant_dtype", scale_upper_bound="scale_ub")
def rms_norm_dynamic_per_token_quant(
    input, weight, epsilon, quant_dtype, scale_ub=None, residual=None
):
    """RMSNorm in 8 bits with a scale for each row: ``(codes, scales)``, scales ``(rows, 1)``.

    With a residual of their sum, which is written into residual. scale_ub, a number, bounds
    the largest value that a scale is made of.
    """
    name = "rms_norm_dynamic_per_token_quant"
    options = {"dtype": quant_dtype, "eps": epsilon}
    options["scale_upper_bound"] = _upper_bound(name, scale_ub, quant_dtype)
    if residual is None:
        codes, scales = rms_norm_quant(input, weight, **options)
    else:
        codes, _, scales = add_rms_norm_quant(
            input, residual, weight, residual_out=residual, **options
        )
    return codes, scales.view(-1, 1)


@adapter(x="input", eps="epsilon", dtype="quant_dtype", scale_upper_bound="scale_ub")
def rms_norm_per_block_quant(
    input, weight, epsilon, quant_dtype, group_size, scale_ub=None, residual=None,
    is_scale_transposed=False, tma_alignment=0,
):  # fmt: skip
    """RMSNorm in 8 bits with a scale for ``group_size[1]`` columns: ``(codes, scales)``.

    ``is_scale_transposed`` keeps scales by columns, each of ``tma_alignment`` times a number of
    rows. With a residual of their sum, which is written into residual. scale_ub, a number, bounds
    the largest value that a scale is made of.
    """
    columns = group_size[1]
    bound = _upper_bound("rms_norm_per_block_quant", scale_ub, quant_dtype)
    groups = -(-input.shape[-1] // columns)
    scales = _rows_of_scales(input, groups, is_scale_transposed, tma_alignment)
    options = {
        "dtype": quant_dtype, "eps": epsilon, "group_size": columns, "scale_upper_bound": bound,
        "scale_out": scales.view(*input.shape[:-1], groups) if input.dim() > 2 else scales,
    }  # fmt: skip
    if residual is None:
        codes, _ = rms_norm_quant(input, weight, **options)
    else:
        codes, _, _ = add_rms_norm_quant(input, residual, weight, residual_out=residual, **options)
    return codes, scales


@adapter(x="input", eps="epsilon", out="result")
def rms_norm_static_fp8_quant(result, input, weight, scale, epsilon):
    """RMSNorm divided by a scale that is given, in the float8 dtype of result."""
    rms_norm_quant(input, weight, dtype=result.dtype, scale=scale, eps=epsilon, out=result)


@adapter(x="input", eps="epsilon", out="result")
def fused_add_rms_norm_static_fp8_quant(result, input, residual, weight, scale, epsilon):
    """The same of ``input + residual``, which is written into residual."""
    add_rms_norm_quant(
        input, residual, weight, dtype=result.dtype, scale=scale, eps=epsilon, out=result,
        residual_out=residual,
    )  # fmt: skip


@adapter(gate="input", dtype="quant_dtype", scale_upper_bound="scale_ub")
def silu_and_mul_per_block_quant(
    input, group_size, quant_dtype, scale_ub=None, is_scale_transposed=False
):
    """``silu(gate) * up`` in 8 bits with a scale for group_size columns: ``(codes, scales)``."""
    groups = -(-input.shape[-1] // 2 // group_size)
    codes, scales = gated_activation_quant(
        input, dtype=quant_dtype, group_size=group_size,
        scale_upper_bound=_upper_bound("silu_and_mul_per_block_quant", scale_ub, quant_dtype),
        scale_out=_rows_of_scales(input, groups, is_scale_transposed, 0),
    )  # fmt: skip
    return codes, scales


@adapter(gate="input", out="result")
def silu_and_mul_quant(result, input, scale):
    """``silu(gate) * up`` divided by a scale that is given, in the float8 dtype of result."""
    gated_activation_quant(input, dtype=result.dtype, scale=scale, out=result)


@adapter(gate="input", out="result")
def silu_and_mul(result, input):
    """Write ``silu(gate) * up`` into result."""
    gated_activation(input, out=result)


@adapter(gate="input", up="input")
def mul_and_silu(out, input):
    """Write ``gate * silu(up)`` into out: the activation is that of the second half."""
    up, gate = input.chunk(2, dim=-1)
    gated_activation(gate, up, out=out)


def _into_out(name: str, formula: str, **options: Any) -> Any:
    """An operator that writes an activation of input into out."""

    def call(out, input):
        gated_activation(input, out=out, **options)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Write ``{formula}`` into out."
    return adapter(gate="input")(call)


gelu_and_mul = _into_out("gelu_and_mul", "gelu(gate) * up", kind="gelu")
gelu_tanh_and_mul = _into_out("gelu_tanh_and_mul", "gelu(gate, 'tanh') * up", **_GELU_NEW)
gelu_new = _into_out("gelu_new", "gelu(input, 'tanh')", packing="gate", **_GELU_NEW)
gelu_fast = _into_out("gelu_fast", "gelu(input, 'tanh')", packing="gate", **_GELU_NEW)
gelu_quick = _into_out("gelu_quick", "input * sigmoid(1.702 * input)", packing="gate",
                       **_QUICK_GELU)  # fmt: skip


@adapter(gate="input")
def swigluoai_and_mul(out, input, alpha=1.702, limit=7.0):
    """Write gpt-oss's activation of interleaved pairs of gate and up into out."""
    gated_activation(input, packing="interleaved", alpha=alpha, limit=limit, up_offset=1.0, out=out)


@adapter(ids="input_ids")
def vocab_parallel_embedding(
    input_ids, weight, org_vocab_start_index, org_vocab_end_index, num_org_vocab_padding,
    added_vocab_start_index, added_vocab_end_index,
):  # fmt: skip
    """The rows of one rank's part of a table; tokens of other ranks get zeros."""
    name = "vocab_parallel_embedding"
    added = added_vocab_end_index - added_vocab_start_index
    refuse(name, "added_vocab_end_index", added_vocab_end_index, added_vocab_end_index - added,
           "look added tokens up in a table of their own")  # fmt: skip
    rows = org_vocab_end_index - org_vocab_start_index
    if weight.shape[0] != rows + num_org_vocab_padding:
        raise ValueError(
            f"{name}: argument 'num_org_vocab_padding' must be {weight.shape[0] - rows}, the rows "
            f"of weight past the vocabulary, got {num_org_vocab_padding}"
        )
    return embedding(input_ids, weight[:rows], vocab_start=org_vocab_start_index)


# --- layers ---


class RMSNorm(_modules.RMSNorm):
    """RMSNorm; with a residual of the sum, and the sum.

    The state dict is vLLM's: one weight of hidden_size, and none with ``has_weight=False``.
    """

    def __init__(self, hidden_size, eps=1e-6, var_hidden_size=None, has_weight=True, dtype=None):
        if var_hidden_size is not None and var_hidden_size != hidden_size:
            refuse("RMSNorm", "var_hidden_size", var_hidden_size, None, "normalise the slice")
        super().__init__(hidden_size, eps, elementwise_affine=has_weight, dtype=dtype)

    @adapter()
    def forward(self, x, residual=None):
        return super().forward(x, residual)


class GemmaRMSNorm(_modules.RMSNorm):
    """RMSNorm with ``1 + weight``, and the sum with a residual; weights start at 0."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__(hidden_size, eps, weight_offset=1.0)

    @adapter()
    def forward(self, x, residual=None):
        return super().forward(x, residual)


class LayerNorm(_modules.LayerNorm):
    """LayerNorm with weight and bias in float32, whatever x has."""

    def __init__(self, dim, eps=1e-6):
        super().__init__(dim, eps, dtype=torch.float32)

    @adapter()
    def forward(self, x):
        return super().forward(x)


@layer(gate="x")
def SiluAndMul(x):
    """``silu(gate) * up`` of halves."""
    return gated_activation(x)


@layer(gate="x", up="x")
def MulAndSilu(x):
    """``gate * silu(up)`` of halves: the activation is that of the second."""
    up, gate = x.chunk(2, dim=-1)
    return gated_activation(gate, up)


_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


@layer({"approximate": _GELUS}, gate="x")
def GeluAndMul(x, *, approximate="none"):
    """``gelu(gate) * up`` of halves; approximate is ``"none"`` or ``"tanh"``."""
    return gated_activation(x, kind=_GELUS[approximate])


@layer(gate="x")
def SwigluOAIAndMul(x, *, alpha=1.702, limit=7.0):
    """gpt-oss's activation of interleaved pairs of gate and up."""
    return gated_activation(x, packing="interleaved", alpha=alpha, limit=limit, up_offset=1.0)


def _of_gate(name: str, formula: str, **options: Any) -> Any:
    def call(x):
        return gated_activation(x, packing="gate", **options)

    call.__name__ = name
    call.__doc__ = f"``{formula}``."
    return layer(gate="x")(call)


NewGELU = _of_gate("NewGELU", "gelu(x, 'tanh')", **_GELU_NEW)
FastGELU = _of_gate("FastGELU", "gelu(x, 'tanh')", **_GELU_NEW)
QuickGELU = _of_gate("QuickGELU", "x * sigmoid(1.702 * x)", **_QUICK_GELU)
ReLUSquaredActivation = _of_gate("ReLUSquaredActivation", "relu(x) ** 2", kind="relu2")

__all__ = list(own_names(globals()))

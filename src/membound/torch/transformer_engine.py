# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Transformer Engine's functions and modules by name: rotary embedding, norms, activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from membound.torch import _modules
from membound.torch._adapters import (
    adapter,
    angle_rows,
    choose,
    cos_and_sin,
    layer,
    own_names,
    refuse,
)
from membound.torch._gated_activation import gated_activation
from membound.torch._losses import reduced_cross_entropy
from membound.torch._recording import dispatch_modes, dynamo_traces
from membound.torch._rope import rope
from membound.torch._softmax import softmax

# --- rotary embedding ---

_T = {"q": "t", "cos": "freqs", "sin": "freqs", "layout": "tensor_format",
      "seqlen_offsets": "start_positions"}  # fmt: skip


@adapter(**_T)
def apply_rotary_pos_emb(
    t, freqs, tensor_format="sbhd", start_positions=None, interleaved=False, fused=False,
    cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """Rotate t by a tensor of angles.

    Args:
        t: ``(seq, batch, heads, head_dim)`` for ``"sbhd"``, ``(batch, seq, heads, head_dim)``
            for ``"bshd"``, ``(tokens, heads, head_dim)`` for ``"thd"`` with cu_seqlens.
        freqs: the angles, ``(positions, 1, 1, rotary_dim)``, each of them twice: one half after
            the other, or adjacent with ``interleaved``. 16-bit angles are widened first.
        tensor_format: see t.
        start_positions: ``(batch,)`` int32: where sequences start.
        interleaved: pairs are adjacent.
        fused: taken and ignored: the one here always is.
        cu_seqlens: ``(sequences + 1,)`` int32, for ``"thd"``; of whole sequences with cp_size:
            twice that must divide their lengths, which raises on the CPU and is unchecked on a GPU.
        cp_size: the number of ranks that share a sequence, which is cut into twice as many chunks.
        cp_rank: this rank: t holds the chunks ``cp_rank`` and ``2 * cp_size - 1 -
            cp_rank`` of each sequence.

    Returns:
        The rotated t. cos and sin stay float32 (float64 for float64); Transformer Engine's unfused
        form rounds them to 16 bits where t has those. In float32 the bits are the same, except with
        start_positions, where the kernel makes cos and sin of the rows that are used.

    >>> import torch
    >>> t, freqs = torch.ones(2, 1, 1, 2), torch.zeros(2, 1, 1, 2)
    >>> bool((apply_rotary_pos_emb(t, freqs) == t).all())
    True
    """
    name = "apply_rotary_pos_emb"
    _check_rank(name, cp_size, cp_rank)
    places = {"sbhd": 0, "bshd": 1, "thd": 0}
    length = t.shape[choose(name, "tensor_format", tensor_format, places)]
    table = _table(name, "freqs", freqs, t, length * cp_size if start_positions is None else None)
    table |= {"interleaved": interleaved, "layout": tensor_format}
    if cp_size == 1:
        return rope(t, None, **table, seqlen_offsets=start_positions, cu_seqlens=cu_seqlens)
    if tensor_format == "thd":
        at = _positions_of_tokens(name, t, cu_seqlens, start_positions, cp_size, cp_rank)
    else:
        at = _positions(name, t, tensor_format, start_positions, cp_size, cp_rank)
    return rope(t, None, **table, position_ids=at)


def _table(function: str, name: str, freqs: Any, t: Any, rows: int | None = None) -> dict[str, Any]:
    """cos and sin of the first rows' angles; the angles themselves if positions pick the rows."""
    angles = angle_rows(function, name, freqs)
    if rows is None:
        return {"freqs": freqs, "rotary_dim": freqs.shape[-1]}
    cos, sin = cos_and_sin(angles[:rows], t)
    return {"cos": cos, "sin": sin, "rotary_dim": freqs.shape[-1]}


def _check_rank(function: str, cp_size: int, cp_rank: int) -> None:
    if cp_size < 1:
        raise ValueError(f"{function}: argument 'cp_size' must be at least 1, got {cp_size}")
    if not 0 <= cp_rank < cp_size:
        raise ValueError(
            f"{function}: argument 'cp_rank' must be from 0 to {cp_size - 1}, got {cp_rank}"
        )


def _of_rank(index: Any, length: Any, cp_size: int, cp_rank: int) -> Any:
    """The position in the sequence of each index into a rank's part of it."""
    chunk = length // 2
    first, second = cp_rank * chunk, (2 * cp_size - 1 - cp_rank) * chunk
    return torch.where(index < chunk, first + index, second + index - chunk)


def _positions(function, t, tensor_format, start_positions, cp_size, cp_rank):
    """The position of every token of a batch, ``(1 or batch, seq)``."""
    choose(function, "tensor_format", tensor_format, {"sbhd": 0, "bshd": 1})
    length = t.shape[tensor_format.index("s")]
    index = torch.arange(length, device=t.device)
    if cp_size > 1:
        if length % 2:
            raise ValueError(
                f"{function}: argument 'cp_size' must be 1 for sequences of odd length, which have "
                f"no two chunks, got {cp_size} with length {length}"
            )
        index = _of_rank(index, length, cp_size, cp_rank)
    return index[None] if start_positions is None else index + start_positions[:, None]


def _positions_of_tokens(function, t, cu_seqlens, start_positions, cp_size, cp_rank):
    """Positions of tokens of concatenated sequences; 0 for tokens after the last sequence."""
    if cu_seqlens is None:
        raise ValueError(
            f"{function}: argument 'cu_seqlens' must be given for tensor_format 'thd', got None"
        )
    on_cpu = cu_seqlens.device.type == "cpu" and not (dynamo_traces() or dispatch_modes())
    if on_cpu and (cu_seqlens % (2 * cp_size)).any():
        raise ValueError(
            f"{function}: argument 'cu_seqlens' must have multiples of 2 * cp_size = {2 * cp_size},"
            f" got {cu_seqlens.tolist()}"
        )
    starts = torch.div(cu_seqlens, cp_size, rounding_mode="floor")
    token = torch.arange(t.shape[0], device=t.device, dtype=starts.dtype)
    sequence = torch.searchsorted(starts, token, right=True) - 1
    inside = sequence < len(starts) - 1
    sequence = sequence.clamp(max=len(starts) - 2)
    index, length = token - starts[sequence], starts[sequence + 1] - starts[sequence]
    at = _of_rank(index, length, cp_size, cp_rank)
    if start_positions is not None:
        at = at + start_positions[sequence]
    return torch.where(inside, at, 0)


@adapter(q="qkv", cos="q_freqs", sin="q_freqs")
def apply_fused_qkv_rotary_pos_emb(
    qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format="sbhd", start_positions=None,
    interleaved=False, cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """Split ``(seq, batch, groups, width)`` into q, k and v, and rotate q and k.

    Args:
        qkv: of each group the heads of q, then one of k and one of v; ``(batch, seq, ...)`` for
            ``"bshd"``.
        q_freqs: the angles of q, as of :func:`apply_rotary_pos_emb`.
        k_freqs: those of k.
        qkv_split_arg_list: the widths of q, k and v.
        tensor_format: ``"sbhd"`` or ``"bshd"``.
        cu_seqlens: taken and ignored, as there.
        start_positions, interleaved, cp_size, cp_rank: as of :func:`apply_rotary_pos_emb`.

    Returns:
        q with all heads of all groups, k and v.
    """
    name = "apply_fused_qkv_rotary_pos_emb"
    _check_rank(name, cp_size, cp_rank)
    of_q, of_k, of_v = qkv_split_arg_list
    if qkv.dim() != 4 or of_q + of_k + of_v != qkv.shape[3] or of_q % of_k:
        raise ValueError(
            f"{name}: argument 'qkv_split_arg_list' must add up to the last of the four axes of "
            f"qkv, the first a multiple of the second, got {list(qkv_split_arg_list)} for shape "
            f"{tuple(qkv.shape)}"
        )
    at = _positions(name, qkv, tensor_format, start_positions, cp_size, cp_rank)
    tokens = at.expand(qkv.shape[tensor_format.index("b")], at.shape[1])
    tokens = (tokens.T if tensor_format == "sbhd" else tokens).flatten()
    groups, lead = qkv.shape[2], tuple(qkv.shape[:2])
    q, k, v = qkv.reshape(-1, *qkv.shape[2:]).split(list(qkv_split_arg_list), dim=2)
    options = {"layout": "thd", "interleaved": interleaved}
    heads = q.unflatten(2, (-1, of_k)).flatten(0, 1)  # a group shares its token's position
    q = rope(
        heads, None, **_table(name, "q_freqs", q_freqs, qkv), **options,
        position_ids=tokens.repeat_interleave(groups),
    )  # fmt: skip
    k = rope(k, None, **_table(name, "k_freqs", k_freqs, qkv), **options, position_ids=tokens)
    return q.view(*lead, -1, of_k), k.view(*lead, groups, of_k), v.reshape(*lead, groups, of_v)


class RotaryPositionEmbedding(nn.Module):
    """The tensor of angles that :func:`apply_rotary_pos_emb` takes.

    Args:
        dim: elements of a head.
        rotary_percent: which part of them is rotated.
        seq_len_interpolation_factor: divides positions (arXiv:2306.15595).
        pretrained_max_position_embeddings: longer sequences than this times that factor are
            squeezed into it.
        rotary_base: of the frequencies.
        interleaved: pairs are adjacent.

    The frequencies are in the state dict, as Transformer Engine's are.

    >>> RotaryPositionEmbedding(4)(2).shape
    torch.Size([2, 1, 1, 4])
    """

    def __init__(
        self, dim, rotary_percent=1.0, seq_len_interpolation_factor=None,
        pretrained_max_position_embeddings=None, rotary_base=10000.0, interleaved=False,
    ):  # fmt: skip
        super().__init__()
        dim = int(dim * rotary_percent) if rotary_percent < 1.0 else dim
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.rotary_base = rotary_base
        self.interleaved = interleaved
        places = torch.arange(0, dim, 2, dtype=torch.float32)
        self.register_buffer("inv_freq", rotary_base ** (-places / dim))

    def forward(self, max_seq_len, offset=0):
        at = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=torch.float32) + offset
        trained, factor = self.pretrained_max_position_embeddings, self.seq_len_interpolation_factor
        if trained is not None and factor is not None:
            at = at / (max_seq_len / trained if max_seq_len > trained * factor else factor)
        angles = torch.outer(at, self.inv_freq.float())
        if self.interleaved:
            return angles.repeat_interleave(2, dim=1)[:, None, None]
        return torch.cat((angles, angles), dim=1)[:, None, None]


# --- norms ---


class _Norm:
    """What both norms take: two names for each of two arguments, and no state of float8."""

    def __init__(
        self, normalized_shape=None, eps=1e-5, sequence_parallel=None, params_dtype=None,
        zero_centered_gamma=False, hidden_size=None, **kwargs,
    ):  # fmt: skip
        module = type(self).__name__
        for name, one, other in (
            ("hidden_size", hidden_size, normalized_shape),
            ("params_dtype", params_dtype, kwargs.get("dtype")),
        ):
            if one is not None and other is not None:
                raise ValueError(
                    f"{module}: argument '{name}' must be None with its newer name, got {one}"
                )
        shape = hidden_size if normalized_shape is None else normalized_shape
        if shape is None:
            raise ValueError(f"{module}: argument 'normalized_shape' must be given, got None")
        unknown = kwargs.keys() - {"sm_margin", "dtype", "device"}
        if unknown:
            raise TypeError(f"{module}: argument '{min(unknown)}' is unknown")
        self.zero_centered_gamma = zero_centered_gamma
        where = {"device": kwargs.get("device"), "dtype": params_dtype or kwargs.get("dtype")}
        super().__init__(shape, eps, weight_offset=float(zero_centered_gamma), **where)
        self.sequence_parallel = sequence_parallel
        if sequence_parallel is not None:
            for parameter in self.parameters():
                parameter.sequence_parallel = sequence_parallel

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict.pop(f"{prefix}_extra_state", None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class RMSNorm(_Norm, _modules.RMSNorm):
    """RMSNorm; with ``zero_centered_gamma`` of ``1 + weight``.

    ``sequence_parallel`` marks the weight, as there; ``sm_margin`` is taken and ignored.
    """

    @adapter(x="input")
    def forward(self, input):
        return super().forward(input)


class LayerNorm(_Norm, _modules.LayerNorm):
    """LayerNorm; with ``zero_centered_gamma`` of ``1 + weight``."""

    @adapter(x="input")
    def forward(self, input):
        return super().forward(input)


# --- losses and softmax ---


@adapter(logits="inp", labels="target", ignore_index="ignore_idx")
def parallel_cross_entropy(
    inp, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None, ignore_idx=-100,
    is_cg_capturable=False, *, _input=None,
):  # fmt: skip
    """The losses of rows of logits in float32, or with ``reduce_loss`` their mean.

    ``is_cg_capturable`` is taken and ignored: it always is. ``_input`` is inp's former name.
    """
    name = "parallel_cross_entropy"
    instead = "gather the vocabulary, or shard rows"
    refuse(name, "dist_process_group", dist_process_group, None, instead)
    return reduced_cross_entropy(
        name, inp if _input is None else _input, target, label_smoothing=label_smoothing,
        ignore_index=ignore_idx, reduction="mean" if reduce_loss else "none",
    )  # fmt: skip


@layer(x="inp")
def FusedScaleMaskSoftmax(
    inp, mask, attn_mask_type, scale=None, *, mask_func, softmax_in_fp32=True
):
    """Softmax of ``scale * inp`` where mask is False.

    ``mask_func`` and ``softmax_in_fp32`` are taken and ignored: what is masked is left out of the
    sums, which are in float32.
    """
    causal = None
    if attn_mask_type in ("causal", "causal_bottom_right"):
        causal = inp.shape[-1] - inp.shape[-2] if "bottom" in attn_mask_type else 0
    keep = None if mask is None or attn_mask_type == "no_mask" else mask.logical_not()
    return softmax(inp, keep, scale=1.0 if scale is None else scale, causal_offset=causal)


# --- activations ---


def _activation(name: str, formula: str, **options: Any) -> Any:
    def call(input, *, cache_quantized_input=False):
        return gated_activation(input, **options)

    call.__name__ = name
    call.__doc__ = f"``{formula}``; cache_quantized_input is ignored: nothing is quantised."
    return layer(keywords=True, gate="input")(call)


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
_INTERLEAVED = {"glu_interleave_size": _PACKINGS}


@layer(_INTERLEAVED, keywords=True, gate="input")
def SwiGLU(input, *, cache_quantized_input=False, glu_interleave_size=None):
    """``silu(gate) * up`` of halves, or of pairs with ``glu_interleave_size=1``."""
    return gated_activation(input, packing=_PACKINGS[glu_interleave_size])


@layer(_INTERLEAVED, keywords=True, gate="input", up_offset="glu_linear_offset")
def ClampedSwiGLU(
    input, *, limit=7.0, alpha=1.702, glu_linear_offset=1.0, cache_quantized_input=False,
    glu_interleave_size=None,
):  # fmt: skip
    """gpt-oss's activation: gate and up clamped, ``glu_linear_offset`` added to up."""
    options = {"limit": limit, "alpha": alpha, "up_offset": glu_linear_offset}
    return gated_activation(input, packing=_PACKINGS[glu_interleave_size], **options)


@layer(_INTERLEAVED, keywords=True, gate="input", alpha="beta1", limit="beta2")
def SiTUGLU(input, *, beta1=4.0, beta2=25.0, cache_quantized_input=False, glu_interleave_size=None):
    """Kimi K3's activation: silu of gate and up, each bounded by a soft cap, beta1 and beta2."""
    options = {"alpha": float(beta1), "limit": float(beta2)}
    packing = _PACKINGS[glu_interleave_size]
    return gated_activation(input, kind="situ", packing=packing, **options)


__all__ = list(own_names(globals()))

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""flash-attention's functions and modules by name: rotary embedding, norms, activations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from membound.torch._adapters import adapter, layer, own_names, refuse
from membound.torch._cross_entropy import cross_entropy
from membound.torch._embedding import embedding
from membound.torch._gated_activation import gated_activation
from membound.torch._gated_linear import gated_linear
from membound.torch._layer_norm import add_layer_norm
from membound.torch._layer_norm import layer_norm as _layer_norm
from membound.torch._losses import REDUCTIONS
from membound.torch._rms_norm import add_rms_norm
from membound.torch._rms_norm import rms_norm as _rms_norm
from membound.torch._rope import rope
from membound.torch._rope_in_place import check_heads, k_alone, q_and_k, rope_in_place, whole

# --- rotary embedding ---

_X = {"q": "x", "dq": "x", "out": "x"}


def _options(rotary_dim, interleaved, seqlen_offsets, cu_seqlens=None):
    """What rope takes; an offset of 0 is None, as at most one kind of positions may be given."""
    given = isinstance(seqlen_offsets, torch.Tensor) or seqlen_offsets
    return {
        "layout": "bshd" if cu_seqlens is None else "thd", "rotary_dim": rotary_dim,
        "interleaved": interleaved, "seqlen_offsets": seqlen_offsets if given else None,
        "cu_seqlens": cu_seqlens,
    }  # fmt: skip


@adapter(**_X)
def apply_rotary_emb(
    x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None,
    max_seqlen=None,
):  # fmt: skip
    """Rotate the first elements of each head of x.

    Args:
        x: ``(batch, seq, heads, head_dim)``, or with cu_seqlens ``(tokens, heads, head_dim)``.
        cos: ``(positions, rotary_dim / 2)``.
        sin: the same.
        interleaved: pairs are adjacent (GPT-J); False: halves (GPT-NeoX).
        inplace: write over x, with its gradient.
        seqlen_offsets: where sequences start: a number, or ``(batch,)`` integers.
        cu_seqlens: ``(sequences + 1,)`` int32.
        max_seqlen: taken and ignored: the launch does not depend on it.

    Returns:
        The rotated tensor, x itself with ``inplace``.

    >>> import torch
    >>> x = torch.ones(1, 1, 1, 4)
    >>> apply_rotary_emb(x, torch.zeros(1, 1), torch.ones(1, 1)).flatten().tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """
    table = {"cos": cos, "sin": sin}
    options = _options(2 * cos.shape[-1], interleaved, seqlen_offsets, cu_seqlens)
    if inplace:
        return rope_in_place(x, whole, table, **options)
    return rope(x, **table, **options)


apply_rotary_emb_func = apply_rotary_emb


@adapter(**_X)
def apply_rotary(
    x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False,
    inplace=False, conjugate=False,
):  # fmt: skip
    """:func:`apply_rotary_emb`, or with ``conjugate`` the other way."""
    options = _options(2 * cos.shape[-1], interleaved, seqlen_offsets, cu_seqlens)
    return rope(x, None, cos, sin, **options, inverse=conjugate, out=x if inplace else None)


@adapter(q="qkv", k="qkv", dq="qkv", dk="qkv", out="qkv", k_out="qkv")
def apply_rotary_emb_qkv_(
    qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None
):
    """Rotate q and k of a fused tensor in place, with its gradient, and return it.

    Args:
        qkv: ``(batch, seq, 3, heads, head_dim)``; with num_heads_q ``(batch, seq, num_heads_q +
            2 * num_heads_k, head_dim)``.
        cos, sin: ``(positions, rotary_dim / 2)``.
        cos_k, sin_k: the same for k; None: those of q.
        interleaved, seqlen_offsets: as of :func:`apply_rotary_emb`.
        num_heads_q: how many heads are q's; the others are halves of k and v.

    >>> import torch
    >>> qkv = torch.ones(1, 1, 3, 1, 2)
    >>> apply_rotary_emb_qkv_(qkv, torch.zeros(1, 1), torch.ones(1, 1)).flatten().tolist()
    [-1.0, 1.0, -1.0, 1.0, 1.0, 1.0]
    """
    check_heads("apply_rotary_emb_qkv_", qkv, num_heads_q)
    tables = [{"cos": cos, "sin": sin}]
    if cos_k is not None or sin_k is not None:
        of_k = {"cos": cos if cos_k is None else cos_k, "sin": sin if sin_k is None else sin_k}
        tables.append(of_k)
    options = _options(2 * cos.shape[-1], interleaved, seqlen_offsets)
    return rope_in_place(qkv, q_and_k(num_heads_q), *tables, **options)


@adapter(q="kv", dq="kv", out="kv")
def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=0):
    """Rotate k of ``(batch, seq, 2, heads, head_dim)`` in place, with its gradient.

    >>> import torch
    >>> kv = torch.ones(1, 1, 2, 1, 2)
    >>> apply_rotary_emb_kv_(kv, torch.zeros(1, 1), torch.ones(1, 1)).flatten().tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ValueError(
            "apply_rotary_emb_kv_: argument 'kv' must have shape (batch, seq, 2, heads, "
            f"head_dim), got {tuple(kv.shape)}"
        )
    options = _options(2 * cos.shape[-1], interleaved, seqlen_offsets)
    return rope_in_place(kv, k_alone, {"cos": cos, "sin": sin}, **options)


class RotaryEmbedding(nn.Module):
    """Rotary embedding in place of qkv, or of q and kv, with angles computed in the kernel.

    Args:
        dim: elements of a head that are rotated.
        base: of the frequencies.
        interleaved: pairs are adjacent.
        scale_base: that of XPos (Sun et al. 2022, arXiv:2212.10554); None: no scale. It takes
            tables, which are made where a sequence is longer than those before.
        device: of the frequencies, which state dicts leave out.

    >>> import torch
    >>> RotaryEmbedding(2)(torch.ones(1, 1, 3, 1, 2)).flatten().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, device=None):
        super().__init__()
        self.dim = dim
        self.base = float(base)
        self.interleaved = interleaved
        self.scale_base = scale_base
        places = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", self.base ** (-places / dim), persistent=False)
        scale = None if scale_base is None else (places + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._tables = {}

    def _apply(self, fn, recurse=True):
        """Move the frequencies, but never cast them: they stay in float32."""
        before = self.inv_freq
        super()._apply(fn, recurse)
        if self.inv_freq.dtype != torch.float32:
            self.inv_freq = before.to(self.inv_freq.device)
        self._tables = {}
        return self

    def _scaled(self, length):
        """The tables of q and k up to a length; XPos scales k's by the inverse of q's scale."""
        if length not in self._tables:
            at = torch.arange(length, device=self.inv_freq.device, dtype=torch.float32)
            angles = torch.outer(at, self.inv_freq)
            power = (at - length // 2) / self.scale_base
            scale = self.scale.float() ** power[:, None]
            self._tables = {length: [
                {"cos": angles.cos() * factor, "sin": angles.sin() * factor}
                for factor in (scale, 1 / scale)
            ]}  # fmt: skip
        return self._tables[length]

    def _of(self, x, seqlen_offset, max_seqlen):
        if self.scale is None:
            return [{"freqs": self.inv_freq}] * 2
        if max_seqlen is None:
            if isinstance(seqlen_offset, torch.Tensor):
                raise ValueError(
                    "RotaryEmbedding: argument 'max_seqlen' must be given with scale_base and a "
                    "tensor of offsets, got None"
                )
            max_seqlen = x.shape[1] + seqlen_offset
        return self._scaled(max(max_seqlen, *self._tables, 0))

    @adapter(q="qkv", k="qkv", seqlen_offsets="seqlen_offset")
    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        """The rotated qkv, or with kv ``(batch, seq, 2, heads, head_dim)`` the pair of q and kv."""
        of_q, of_k = self._of(qkv, seqlen_offset, max_seqlen)
        options = _options(self.dim, self.interleaved, seqlen_offset)
        if kv is not None:
            return (
                rope_in_place(qkv, whole, of_q, **options),
                rope_in_place(kv, k_alone, of_k, **options),
            )
        check_heads("RotaryEmbedding", qkv, num_heads_q)
        tables = [of_q] if self.scale is None else [of_q, of_k]
        return rope_in_place(qkv, q_and_k(num_heads_q), *tables, **options)


# --- losses, activations and embeddings ---


@adapter(z_loss="lse_square_scale")
def cross_entropy_loss(
    logits, labels, precomputed_lse=None, label_smoothing=0.0, logit_scale=1.0,
    lse_square_scale=0.0, ignore_index=-100, inplace_backward=False, process_group=None,
):  # fmt: skip
    """``(losses, z losses)`` of rows of logits in float32; the second without a gradient.

    ``precomputed_lse`` and ``inplace_backward`` are taken and ignored: they change no result. A
    logit_scale multiplies logits first, and z losses are computed by themselves: a pass more each.
    """
    instead = "gather the vocabulary, or shard rows"
    refuse("cross_entropy_loss", "process_group", process_group, None, instead)
    scaled = logits if logit_scale == 1.0 else logits * logit_scale
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if lse_square_scale != 0.0:
        return cross_entropy(scaled, labels, z_loss=lse_square_scale, return_z_loss=True, **options)
    losses = cross_entropy(scaled, labels, **options)
    return losses, torch.zeros_like(losses, requires_grad=False)


@layer({"reduction": REDUCTIONS}, logits="input", labels="target")
def CrossEntropyLoss(
    input, target, precomputed_lse=None, *, ignore_index=-100, reduction="mean",
    label_smoothing=0.0, logit_scale=1.0, lse_square_scale=0.0, inplace_backward=False,
    process_group=None, return_z_loss=False,
):  # fmt: skip
    """:func:`cross_entropy_loss` as a module, with a reduction."""
    found = cross_entropy_loss(
        input, target, precomputed_lse, label_smoothing, logit_scale, lse_square_scale,
        ignore_index, inplace_backward, process_group,
    )  # fmt: skip
    if reduction != "none":
        found = [losses.sum() for losses in found]
    if reduction == "mean":
        counted = (target != ignore_index).sum()
        found = [total / counted for total in found]
    return tuple(found) if return_z_loss else found[0]


@adapter("swiglu", gate="x", up="y")
def swiglu(x, y):
    """``silu(x) * y``."""
    return gated_activation(x, y)


@adapter("sqrelu_fwd", gate="x")
def sqrelu_fwd(x):
    """``relu(x) ** 2``."""
    return gated_activation(x, kind="relu2", packing="gate")


_KINDS = {F.sigmoid: "sigmoid", torch.sigmoid: "sigmoid", F.silu: "silu", F.gelu: "gelu"}


class GatedMlp(nn.Module):
    """Two projections with a gated activation between them, which is not saved.

    activation is ``F.sigmoid``, ``F.silu`` or ``F.gelu``.
    """

    def __init__(
        self, in_features, hidden_features=None, out_features=None, activation=F.sigmoid,
        bias1=True, bias2=True, multiple_of=128, return_residual=False, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        if activation not in _KINDS:
            refuse("GatedMlp", "activation", activation, F.sigmoid, "or be F.silu or F.gelu")
        out_features = in_features if out_features is None else out_features
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = -(-hidden // multiple_of) * multiple_of
        where = {"device": device, "dtype": dtype}
        self.activation = activation
        self.return_residual = return_residual
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias1, **where)
        self.fc2 = nn.Linear(hidden, out_features, bias=bias2, **where)

    def forward(self, x):
        up, gate = self.fc1(x).chunk(2, dim=-1)
        kind = _KINDS[self.activation]
        y = gated_linear(gate, up, self.fc2.weight, self.fc2.bias, kind=kind)
        return (y, x) if self.return_residual else y


class GPT2Embeddings(nn.Module):
    """The sum of word and position embeddings, in one pass."""

    def __init__(
        self, embed_dim, vocab_size, max_position_embeddings, padding_idx=None,
        word_embed_proj_dim=None, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        refuse("GPT2Embeddings", "word_embed_proj_dim", word_embed_proj_dim, None,
               "use Embedding, nn.Linear and Embedding")  # fmt: skip
        where = {"device": device, "dtype": dtype}
        self.max_position_embeddings = max_position_embeddings
        self.word_embeddings = nn.Embedding(vocab_size, embed_dim, padding_idx, **where)
        self.project_in = None
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **where)

    @adapter(ids="input_ids")
    def forward(self, input_ids, position_ids=None):
        words = self.word_embeddings
        positions = self.position_embeddings.weight if self.max_position_embeddings > 0 else None
        return embedding(
            input_ids, words.weight, padding_idx=words.padding_idx, position_weight=positions,
            position_ids=None if positions is None else position_ids,
        )  # fmt: skip


# --- norms ---


_INSTEAD = {
    "bias": "add it to the result",
    "x1": "add it to the residual",
    "weight1": "call the function again for the second branch",
    "bias1": "call the function again for the second branch",
    "rowscale": "multiply the input by it first",
    "layerscale": "multiply the input by it first",
    "return_dropout_mask": "call F.dropout on the input yourself",
}


def _refuse(name, return_dropout_mask=False, **given):
    refuse(name, "return_dropout_mask", return_dropout_mask, False, _INSTEAD["return_dropout_mask"])
    for argument, value in given.items():
        refuse(name, argument, value, None, _INSTEAD[argument])


def _normalised(name, x, residual, weight, bias, eps, *, is_rms_norm, prenorm, in_fp32,
                dropout_p=0.0, zero_centered=False, residual_out=None, **options):  # fmt: skip
    """The norm of x or of x + residual, with dropout before it; with prenorm also that input."""
    x = F.dropout(x, dropout_p) if dropout_p else x
    options |= {"eps": eps, "weight_offset": float(zero_centered)}
    if is_rms_norm:
        _refuse(name, bias=bias)
    arrays = (weight,) if is_rms_norm else (weight, bias)
    if residual is None:
        y = (_rms_norm if is_rms_norm else _layer_norm)(x, *arrays, **options)
        total = x.float() if prenorm and in_fp32 else x
    else:
        add = add_rms_norm if is_rms_norm else add_layer_norm
        y, total = add(x, residual, *arrays, residual_out=residual_out, **options)
    return (y, total) if prenorm else y


@adapter(dtype="out_dtype")
def layer_norm_fn(
    x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0,
    rowscale=None, prenorm=False, residual_in_fp32=False, zero_centered_weight=False,
    is_rms_norm=False, return_dropout_mask=False, out_dtype=None, out=None, residual_out=None,
):  # fmt: skip
    """LayerNorm, or RMSNorm, of x or of ``x + residual``; with prenorm the result and the sum.

    With ``dropout_p`` torch's dropout runs before it, as a pass of its own.

    >>> import torch
    >>> layer_norm_fn(torch.tensor([[1.0, 3.0]]), None, None, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    name = "layer_norm_fn"
    _refuse(name, return_dropout_mask, x1=x1, weight1=weight1, bias1=bias1, rowscale=rowscale)
    return _normalised(
        name, x, residual, weight, bias, eps, is_rms_norm=is_rms_norm, prenorm=prenorm,
        in_fp32=residual_in_fp32, dropout_p=dropout_p, zero_centered=zero_centered_weight,
        residual_out=residual_out, out=out, dtype=out_dtype,
    )  # fmt: skip


@adapter()
def rms_norm_fn(
    x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0,
    rowscale=None, prenorm=False, residual_in_fp32=False, zero_centered_weight=False,
    return_dropout_mask=False, out_dtype=None, out=None, residual_out=None,
):  # fmt: skip
    """:func:`layer_norm_fn` with ``is_rms_norm=True``."""
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm,
        residual_in_fp32, zero_centered_weight, True, return_dropout_mask, out_dtype, out,
        residual_out,
    )  # fmt: skip


@adapter(eps="epsilon")
def layer_norm(x, weight, bias, epsilon):
    """LayerNorm over the last axis."""
    return _layer_norm(x, weight, bias, eps=epsilon)


@adapter(eps="epsilon")
def rms_norm(x, weight, epsilon):
    """RMSNorm over the last axis."""
    return _rms_norm(x, weight, eps=epsilon)


def _dropout_add(name, norm, *, is_rms_norm):
    def call(
        x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None,
        prenorm=False, residual_in_fp32=False, return_dropout_mask=False,
    ):  # fmt: skip
        _refuse(name, return_dropout_mask, rowscale=rowscale, layerscale=layerscale)
        return _normalised(
            name, x0, residual, weight, bias, epsilon, is_rms_norm=is_rms_norm, prenorm=prenorm,
            in_fp32=residual_in_fp32, dropout_p=dropout_p,
        )  # fmt: skip

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (
        f"{norm} of ``dropout(x0) + residual``; with prenorm the result and the sum.\n\n"
        "Dropout is torch's, a pass of its own."
    )
    return adapter(x="x0", eps="epsilon")(call)


dropout_add_layer_norm = _dropout_add("dropout_add_layer_norm", "LayerNorm", is_rms_norm=False)
dropout_add_rms_norm = _dropout_add("dropout_add_rms_norm", "RMSNorm", is_rms_norm=True)


class RMSNorm(nn.Module):
    """RMSNorm with dropout before it and a residual, that of ``ops.triton.layer_norm``."""

    def __init__(
        self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False, device=None,
        dtype=None,
    ):  # fmt: skip
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        """Reset the weight such that it multiplies by 1."""
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    @adapter()
    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return _normalised(
            "RMSNorm", x if self.drop is None else self.drop(x), residual, self.weight, None,
            self.eps, is_rms_norm=True, prenorm=prenorm, in_fp32=residual_in_fp32,
            zero_centered=self.zero_centered_weight,
        )  # fmt: skip


class DropoutAddLayerNorm(nn.Module):
    """LayerNorm of ``dropout(x0) + residual``; with prenorm the result and the sum."""

    _is_rms_norm = False

    def __init__(
        self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None,
        dtype=None,
    ):  # fmt: skip
        super().__init__()
        self.prenorm = prenorm
        self.p = p
        self.eps = eps
        self.residual_in_fp32 = residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        bias = None if self._is_rms_norm else torch.zeros_like(self.weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    @adapter(x="x0")
    def forward(self, x0, residual=None):
        return _normalised(
            type(self).__name__, x0, residual, self.weight, self.bias, self.eps,
            is_rms_norm=self._is_rms_norm, prenorm=self.prenorm, in_fp32=self.residual_in_fp32,
            dropout_p=self.p if self.training else 0.0,
        )  # fmt: skip


class DropoutAddRMSNorm(DropoutAddLayerNorm):
    """The same with RMSNorm, and without a bias."""

    _is_rms_norm = True


__all__ = list(own_names(globals()))

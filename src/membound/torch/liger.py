# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel's functions and modules by name.

``in_place``, ``row_mode``, ``impl``, ``mode``, ``backend`` and ``chunk_mem_const`` are taken and
ignored: they choose a launch or the memory of gradients, not a result.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from membound.torch import _modules
from membound.torch._adapters import adapter, choose, layer, own_names, refuse
from membound.torch._gated_activation import gated_activation
from membound.torch._gated_linear import gated_linear
from membound.torch._layer_norm import layer_norm
from membound.torch._losses import (
    REDUCTIONS,
    reduced_cross_entropy,
    reduced_linear_cross_entropy,
)
from membound.torch._rms_norm import add_rms_norm, rms_norm
from membound.torch._rope import rope
from membound.torch._softmax import softmax
from membound.torch.huggingface import apply_rotary_pos_emb

# --- activations and gated feed-forward blocks ---


@adapter(gate="a", up="b")
def liger_swiglu(a, b):
    """``silu(a) * b``."""
    return gated_activation(a, b)


@adapter(gate="a", up="b")
def liger_geglu(a, b):
    """``gelu(a, 'tanh') * b``."""
    return gated_activation(a, b, kind="gelu_tanh")


@adapter(gate="x")
def liger_relu_squared(x):
    """``relu(x) ** 2``."""
    return gated_activation(x, kind="relu2", packing="gate")


@layer(gate="x")
def LigerReLUSquared(x):
    """``relu(x) ** 2``."""
    return liger_relu_squared(x)


class _GatedMLP(nn.Module):
    """Three projections and a gated activation, which is not saved."""

    _kind = "silu"
    _acts: tuple[str, ...] = ("silu", "swish")
    _projections = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}  # noqa: RUF012

    def __init__(self, config, intermediate_size=None):
        super().__init__()
        if self._acts and config.hidden_act not in self._acts:
            known = " or ".join(map(repr, self._acts))
            raise ValueError(
                f"{type(self).__name__}: argument 'config' must have the hidden_act {known}, got "
                f"{config.hidden_act!r}"
            )
        self.config = config
        self.hidden_size = config.hidden_size
        self.intermediate_size = (
            config.intermediate_size if intermediate_size is None else intermediate_size
        )
        inside = self.intermediate_size if "up" in self._projections else 2 * self.intermediate_size
        for role, name in self._projections.items():
            sizes = (self.intermediate_size, self.hidden_size)
            sizes = sizes if role == "down" else (self.hidden_size, inside)
            setattr(self, name, nn.Linear(*sizes, bias=False))

    def forward(self, x):
        of = {role: getattr(self, name) for role, name in self._projections.items()}
        up = of["up"](x) if "up" in of else None
        return gated_linear(of["gate"](x), up, of["down"].weight, kind=self._kind)


class LigerSwiGLUMLP(_GatedMLP):
    """The gated MLP of Llama."""


class LigerQwen3MoeSwiGLUMLP(_GatedMLP):
    """The gated MLP of an expert of Qwen3-MoE."""


class LigerMLP(_GatedMLP):
    """The gated MLP of Llama."""

    def __init__(self, config):
        super().__init__(config)


class LigerTiledSwiGLUMLP(_GatedMLP):
    """The gated MLP of Llama in one pass; ``num_shards`` is taken and ignored."""

    def __init__(self, config, num_shards=None):
        super().__init__(config)


class LigerGEGLUMLP(LigerMLP):
    """The gated MLP of Gemma: gelu with tanh."""

    _kind = "gelu_tanh"
    _acts = ()


class LigerTiledGEGLUMLP(LigerTiledSwiGLUMLP):
    """The gated MLP of Gemma in one pass; ``num_shards`` is taken and ignored."""

    _kind = "gelu_tanh"
    _acts = ("gelu", "gelu_new", "gelu_pytorch_tanh")


class LigerPhi3SwiGLUMLP(LigerMLP):
    """The gated MLP of Phi-3: one projection computes gate and up."""

    _projections = {"gate": "gate_up_proj", "down": "down_proj"}  # noqa: RUF012


class LigerBlockSparseTop2MLP(LigerMLP):
    """The gated MLP of an expert of Mixtral."""

    _projections = {"gate": "w1", "down": "w2", "up": "w3"}  # noqa: RUF012


# --- rotary embedding ---


@adapter()
def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """Rotate q and k by rows of each token, as Hugging Face's ``apply_rotary_pos_emb`` does.

    position_ids is taken and ignored, as there: cos and sin are rows of tokens. With rotary_dim
    they have half its width, without every angle twice.
    """
    if rotary_dim is None:
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
    layouts = {1: "bhsd", 2: "bshd"}
    layout = choose("liger_rotary_pos_emb", "unsqueeze_dim", unsqueeze_dim, layouts)
    return rope(q, k, cos, sin, layout=layout, rotary_dim=rotary_dim)


liger_rope = liger_rotary_pos_emb


@adapter()
def liger_rotary_pos_emb_gpt_oss(q, k, cos, sin):
    """Rotate q and k, ``(batch, heads, seq, head_dim)``, by rows of half their width."""
    return rope(q, k, cos, sin, layout="bhsd", rotary_dim=q.shape[-1])


@adapter()
def liger_rotary_pos_emb_vision(q, k, cos, sin):
    """Rotate q and k, ``(seq, heads, head_dim)``, by rows of ``(seq, head_dim)``."""
    return rope(q, k, cos, sin, layout="thd", rotary_dim=cos.shape[-1])


@adapter()
def liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    """Rotate q and k by rows of time, height and width, ``(3, batch, seq, head_dim)``.

    Sections of columns are taken from each of them, which gives tables of one row per token.
    """
    widths = list(mrope_section) * 2
    cos, sin = (
        torch.cat([part[at % 3] for at, part in enumerate(table.split(widths, dim=-1))], dim=-1)
        for table in (cos, sin)
    )
    return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


liger_qwen2vl_mrope = liger_multimodal_rotary_pos_emb


@adapter(q="xq", k="xk", cos="freqs_cis", sin="freqs_cis")
def liger_llama4_text_rotary_pos_emb(xq, xk, freqs_cis):
    """Rotate adjacent pairs of ``(batch, seq, heads, head_dim)`` by complex ``(seq, dim / 2)``."""
    rows = freqs_cis if freqs_cis.dim() == 2 or freqs_cis.shape[0] > 1 else freqs_cis[0]
    return rope(xq, xk, rows.real, rows.imag, interleaved=True, rotary_dim=2 * rows.shape[-1])


# --- softmax, embedding and losses ---


@adapter()
def liger_softmax(x):
    """Softmax over the last axis."""
    return softmax(x)


@layer()
def LigerSoftmax(x):
    """Softmax over the last axis."""
    return softmax(x)


class LigerEmbedding(_modules.Embedding):
    """Rows of a table; every run gives the same gradient."""

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None):
        super().__init__(num_embeddings, embedding_dim, padding_idx)

    @adapter(ids="indices")
    def forward(self, indices):
        return super().forward(indices)


# --- norms ---


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


def _rms_norm_of(model: str, called: dict[str, str | None], **defaults: Any) -> Any:
    """LigerRMSNorm with a model's defaults and names of arguments; None: not there."""
    name = f"LigerRMSNormFor{model}"
    origin = inspect.signature(LigerRMSNorm.__init__).parameters.values()
    ours = {called.get(one.name, one.name): one for one in origin}
    signature = inspect.Signature([
        one.replace(name=theirs, default=defaults.get(one.name, one.default))
        for theirs, one in ours.items() if theirs is not None
    ])  # fmt: skip

    def __init__(self, *args, **kwargs):  # noqa: N807 - it is one
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        LigerRMSNorm.__init__(**{ours[theirs].name: one for theirs, one in given.arguments.items()})

    __init__.__signature__ = signature
    text = f":class:`LigerRMSNorm` with the defaults of {model}."
    body = {"__init__": __init__, "__doc__": text, "__module__": __name__}
    return type(name, (LigerRMSNorm,), body)


_GEMMA: dict[str, Any] = {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros"}
_AFFINE: dict[str, str | None] = {"elementwise_affine": None}
_DIM = {"hidden_size": "dim", "row_mode": None}

LigerRMSNormForGemma = _rms_norm_of("Gemma", _AFFINE, **_GEMMA)
LigerRMSNormForGemma2 = _rms_norm_of("Gemma2", _AFFINE, **_GEMMA, in_place=False)
LigerRMSNormForGemma3 = _rms_norm_of("Gemma3", _DIM | _AFFINE, **_GEMMA, in_place=False)
LigerRMSNormForGemma4 = _rms_norm_of(
    "Gemma4", _DIM | {"elementwise_affine": "with_scale"}, casting_mode="gemma", in_place=False
)
LigerRMSNormForOlmo2 = _rms_norm_of("Olmo2", _AFFINE, in_place=False)
LigerRMSNormForGlm4 = _rms_norm_of("Glm4", _AFFINE, in_place=False)
LigerRMSNormForQwen3Next = _rms_norm_of("Qwen3Next", _AFFINE, **_GEMMA, in_place=False)


class LigerFusedAddRMSNorm(_rms_norm_of("added", {"row_mode": None} | _AFFINE, in_place=False)):
    """RMSNorm of ``hidden_states + residual``, and the sum."""

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


# --- losses ---


_INSTEAD = {
    "return_z_loss": "subtract the loss without it",
    "return_token_accuracy": "compare labels with logits.argmax(-1)",
    "return_predicted_tokens": "compare labels with logits.argmax(-1)",
}


def _refuse_more(function, returned, z_loss, **weight):
    for (argument, instead), value in zip(_INSTEAD.items(), returned, strict=True):
        refuse(function, argument, value, False, instead)
    ((argument, value),) = weight.items()
    if z_loss:
        instead = "with lse_square_scale it is weighted here, not there"
        refuse(function, argument, value, None, instead)


@adapter(logits="input", labels="target", z_loss="lse_square_scale")
def liger_cross_entropy(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
    reduction="mean", label_smoothing=0.0, lse_square_scale=0.0, softcap=None, return_z_loss=False,
    return_token_accuracy=False, return_predicted_tokens=False,
):  # fmt: skip
    """Cross entropy of rows of logits, in their dtype.

    ``size_average`` and ``reduce`` are taken and ignored, as there.
    """
    name = "liger_cross_entropy"
    returned = return_z_loss, return_token_accuracy, return_predicted_tokens
    _refuse_more(name, returned, lse_square_scale, weight=weight)
    loss = reduced_cross_entropy(
        name, input, target, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, z_loss=lse_square_scale, softcap=softcap,
    )  # fmt: skip
    return loss.to(input.dtype)


@adapter(x="input", labels="target", class_weight="ce_weight", z_loss="lse_square_scale")
def liger_fused_linear_cross_entropy(
    input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
    label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None,
    use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False,
    chunk_mem_const=1,
):  # fmt: skip
    """Cross entropy of ``input @ weight.T + bias``, without materialising all logits."""
    name = "liger_fused_linear_cross_entropy"
    returned = return_z_loss, return_token_accuracy, return_predicted_tokens
    _refuse_more(name, returned, lse_square_scale, ce_weight=ce_weight)
    refuse(name, "use_token_scaling", use_token_scaling, False, "use reduction='none'")
    if accum_dtype != weight.dtype:
        refuse(name, "accum_dtype", accum_dtype, None, "gradients are summed in weight's dtype")
    return reduced_linear_cross_entropy(
        name, input, weight, target, bias, class_weight=ce_weight, reduction=reduction,
        ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=lse_square_scale,
        softcap=softcap,
    )  # fmt: skip


@layer({"reduction": REDUCTIONS}, input="_input")
def LigerCrossEntropyLoss(
    _input, target, *, weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
    reduction="mean", softcap=None, return_z_loss=False, return_token_accuracy=False,
    return_predicted_tokens=False,
):  # fmt: skip
    """:func:`liger_cross_entropy` as a module."""
    return liger_cross_entropy(
        _input, target, weight, None, ignore_index, None, reduction, label_smoothing,
        lse_square_scale, softcap, return_z_loss, return_token_accuracy, return_predicted_tokens,
    )  # fmt: skip


@layer({"reduction": REDUCTIONS}, input="_input", weight="lin_weight")
def LigerFusedLinearCrossEntropyLoss(
    lin_weight, _input, target, bias=None, *, ce_weight=None, ignore_index=-100,
    lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False,
    accum_dtype=None, use_token_scaling=False, return_token_accuracy=False,
    return_predicted_tokens=False,
):  # fmt: skip
    """:func:`liger_fused_linear_cross_entropy` as a module."""
    return liger_fused_linear_cross_entropy(
        _input, lin_weight, target, bias, ce_weight, ignore_index, lse_square_scale,
        label_smoothing, reduction, softcap, return_z_loss, accum_dtype, use_token_scaling,
        return_token_accuracy, return_predicted_tokens,
    )  # fmt: skip


__all__ = list(own_names(globals()))

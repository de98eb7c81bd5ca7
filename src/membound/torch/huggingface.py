# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions with the names and arguments of Hugging Face's transformers, and layers for `kernels`.

`LAYERS` is the folder of a layer package that Hugging Face's `kernels` library loads from disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from membound.torch._rope import rope

__all__ = ["LAYERS", "apply_rotary_pos_emb", "kernel_mapping"]
LAYERS = Path(__file__).with_name("layer_package")
_NORMS = {"before_weight": "RMSNorm", "once": "RMSNormRoundedOnce"}


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    """Rotate q and k as the models' own function does, in one launch and with one rounding.

    Args:
        q: ``(batch, heads, seq, head_dim)`` with ``unsqueeze_dim=1``, ``(batch, seq, heads,
            head_dim)`` with 2; with any strides. Without the axis of batches, too.
        k: the same but for the number of heads.
        cos: ``(batch, seq, rotary_dim)`` with a column for each element, as the models' rotary
            embedding returns it; a batch of 1, or no such axis, serves all. Elements of a head past
            rotary_dim are copied.
        sin: the same for the sines.
        unsqueeze_dim: the position of the heads axis that is inserted in cos and sin, so that they
            broadcast against q.

    Returns:
        The rotated q and k, with the memory order of the inputs: if the heads of a token are
        contiguous in q, they are in the result, as attention and the layers before expect. In
        float32 the bits are those of transformers' function; in 16 bits they are closer to the
        exact result, as products are not rounded.

    >>> import torch
    >>> q, k = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
    >>> cos, sin = torch.zeros(1, 3, 8), torch.ones(1, 3, 8)
    >>> apply_rotary_pos_emb(q, k, cos, sin)[1][0, 0, 0].tolist()
    [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]
    """
    return turn(q, k, cos, sin, unsqueeze_dim, rotary_dim=cos.shape[-1])


def turn(q, k, cos, sin, unsqueeze_dim, **options):
    """:func:`rope` of q and k, or of q alone, with a heads axis inserted in the tables."""
    heads = unsqueeze_dim + q.ndim - cos.ndim - (1 if unsqueeze_dim >= 0 else -cos.ndim)
    if q.ndim not in (3, 4) or not q.ndim - 3 <= heads <= q.ndim - 2 or cos.ndim >= q.ndim:
        raise ValueError(
            "apply_rotary_pos_emb: argument 'unsqueeze_dim' must name an axis of heads of "
            "(batch, heads, seq, head_dim) or (batch, seq, heads, head_dim), got "
            f"{unsqueeze_dim!r} for q of {q.ndim} axes and cos of {cos.ndim}"
        )
    if q.ndim == 3:
        alone = turn(
            q[None], None if k is None else k[None], cos, sin, -2 - (heads == 0), **options
        )
        return alone[0] if k is None else tuple(t[0] for t in alone)
    tokens = q.shape[3 - heads]
    if cos.shape[-2] != tokens:  # one angle for all
        cos, sin = (t.expand(*t.shape[:-2], tokens, -1) for t in (cos, sin))
    by_token = heads == 2
    # Models split a projection into heads this way. Results in head-major order would be copied by
    # attention's output and by the projection's gradient, and the copies would stay alive.
    if not by_token and tokens > 1 and q.stride(1) < q.stride(2):
        q, k = q.transpose(1, 2), None if k is None else k.transpose(1, 2)
        rotated = rope(q, k, cos, sin, layout="bshd", **options)
        return rotated.transpose(1, 2) if k is None else tuple(t.transpose(1, 2) for t in rotated)
    return rope(q, k, cos, sin, layout="bshd" if by_token else "bhsd", **options)


def kernel_mapping(rounding: str = "before_weight") -> dict[str, Any]:
    """membound's layers for the slots of Hugging Face's `kernels` library (0.17 or later).

    The slots are "RMSNorm" and "rotary_pos_emb" on CPUs and GPUs, for inference and training, with
    torch.compile and without. Nothing is downloaded: the layers are a folder of this package,
    `LAYERS`. On GPUs they go before those that transformers registers for the same slots::

        from kernels import Mode, kernelize, use_kernel_mapping

        with use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
            kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE)

    or ``kernels.register_kernel_mapping(kernel_mapping())`` once, and ``model.use_kernels = True``.

    Args:
        rounding: ``"before_weight"`` as the norms of Llama, Mistral, Qwen and most others round,
            ``"once"`` as those of OLMo 2 and gpt-oss do. In float32 they are the same.

    Returns:
        What ``kernels.register_kernel_mapping`` and ``use_kernel_mapping`` take.
    """
    if rounding not in _NORMS:
        raise ValueError(
            f"kernel_mapping: argument 'rounding' must be one of {', '.join(map(repr, _NORMS))}, "
            f"got {rounding!r}"
        )
    from kernels import CUDAProperties, Device, LocalLayerRepository

    # The narrowest range of capabilities wins, and transformers' own layers have no limits.
    gpus = Device(type="cuda", properties=CUDAProperties(min_capability=75, max_capability=10**6))

    def everywhere(layer: str) -> dict[Any, Any]:
        repository = LocalLayerRepository(LAYERS, layer_name=layer)  # for every mode
        return {"cpu": repository, gpus: repository}

    return {"RMSNorm": everywhere(_NORMS[rounding]), "rotary_pos_emb": everywhere("RotaryPosEmb")}

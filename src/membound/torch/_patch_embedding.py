# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces embeddings of a model, with or without a scale."""

from __future__ import annotations

import torch
from torch import nn

from membound.torch._embedding import embedding
from membound.torch._patch_class import Recipe
from membound.torch._patch_forward import left_to_compiler
from membound.torch._patch_trial import LeftAloneError, default_settings, draw, stand_in
from membound.torch._recording import dynamo_traces

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def is_embedding(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and not list(module.children())


def replace_embedding(module: nn.Module) -> tuple[str, Recipe]:
    for name in ("max_norm", "sparse", "scale_grad_by_freq"):
        if getattr(module, name):
            raise LeftAloneError(f"it has {name}")
    cls = type(module)
    if cls.forward is nn.Embedding.forward:
        return "embedding", Recipe(_embedding_forward)
    value = getattr(module, "embed_scale", None)
    if not isinstance(value, (float, int, torch.Tensor)) or torch.as_tensor(value).numel() != 1:
        raise LeftAloneError("its forward does more than look rows up")
    scale = torch.as_tensor(value, device="cpu")
    as_given = dict.fromkeys(_DTYPES, float(scale))
    # A number is read at each call; a buffer is read once, as reading makes the host wait.
    if not isinstance(value, torch.Tensor) and _confirmed(module, as_given):
        return "embedding, scale", Recipe(_scaled_forward, (cls, None))
    rounded = {dtype: float(scale.to(dtype)) for dtype in _DTYPES}
    for scales in (rounded, as_given):
        if isinstance(value, torch.Tensor) and _confirmed(module, scales):
            return "embedding, scale", Recipe(_scaled_forward, (cls, tuple(scales.items())))
    raise LeftAloneError("its forward does more than look rows up and scale them")


def _confirmed(module: nn.Module, scales: dict[torch.dtype, float]) -> bool:
    """Whether the module's own forward gives the same bits for a random table."""
    with default_settings() as generator:
        table, ids = draw(generator, 8, 64), torch.arange(8).reshape(2, 4)
        for dtype in (torch.float32, torch.bfloat16):
            weight = nn.Parameter(table.to(dtype), requires_grad=False)
            buffers = {name: b.cpu() for name, b in module.named_buffers()}
            twin = stand_in(module, {"weight": weight}, buffers)
            twin.padding_idx = None
            try:
                wanted = type(module).forward(twin, ids)
            except Exception:  # noqa: BLE001 - a stranger's code
                return False
            if not torch.equal(embedding(ids, weight, scale=scales[dtype]), wanted):
                return False
    return True


def _embedding_forward():
    def forward(self, input):  # noqa: A002 - torch.nn's name
        if dynamo_traces() and left_to_compiler(self.weight):
            return nn.Embedding.forward(self, input)
        return _look_up(self, input, 1.0)

    return forward


def _scaled_forward(cls, scales):
    of_dtype = None if scales is None else dict(scales)

    def forward(self, input_ids):
        if dynamo_traces() and left_to_compiler(self.weight):
            return cls.forward(self, input_ids)
        scale = self.embed_scale if of_dtype is None else of_dtype[self.weight.dtype]
        return _look_up(self, input_ids, scale)

    return forward


def _look_up(module, ids, scale):
    # For ids outside of the table torch raises, or aborts the context on a GPU; ours gives zeros.
    on_cpu = ids.device.type == "cpu"
    return embedding(
        ids, module.weight, padding_idx=module.padding_idx, scale=scale, validate=on_cpu
    )

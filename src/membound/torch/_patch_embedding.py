# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Embeddings of a model, and what computes the same here."""

from __future__ import annotations

from torch import nn

from membound.torch._embedding import embedding
from membound.torch._patch_class import Recipe
from membound.torch._patch_trial import LeftAloneError


def is_embedding(module: nn.Module) -> bool:
    return type(module) is nn.Embedding


def replace_embedding(module: nn.Module) -> tuple[str, Recipe]:
    for name in ("max_norm", "sparse", "scale_grad_by_freq"):
        if getattr(module, name):
            raise LeftAloneError(f"it has {name}")
    return "embedding", Recipe(_embedding_forward)


def _embedding_forward():
    def forward(self, input):  # noqa: A002 - torch.nn's name
        # torch raises for ids outside of the table too; on a GPU it aborts the context, we give
        # zeros.
        on_cpu = input.device.type == "cpu"
        return embedding(input, self.weight, padding_idx=self.padding_idx, validate=on_cpu)

    return forward

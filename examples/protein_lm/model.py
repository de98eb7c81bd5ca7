# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder of membound's layers: embedding, norms of the residual, rotation, gated MLP, loss."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import membound.torch as mt


@dataclass
class Config:
    vocab: int
    width: int = 128
    inner: int = 320
    heads: int = 4
    layers: int = 2


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.rotary = mt.RotaryEmbedding(config.width // config.heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = self.rotary(q, k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class GatedMlp(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate_up = nn.Linear(config.width, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mt.gated_linear(self.gate_up(x), None, self.down.weight)  # keeps no activation


class ProteinModel(nn.Module):
    """Each part adds to the residual stream; the norm before a part does that addition."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embedding = mt.Embedding(config.vocab, config.width)
        nn.init.normal_(self.embedding.weight, std=0.02)  # it makes the logits too
        self.parts = nn.ModuleList(
            part(config) for _ in range(config.layers) for part in (Attention, GatedMlp)
        )
        self.norms = nn.ModuleList(mt.RMSNorm(config.width) for _ in range(len(self.parts) + 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The logits of the next token at each place."""
        residual = self.embedding(ids) * self.config.width**0.5
        x = self.norms[0](residual)
        for part, norm in zip(self.parts, self.norms[1:], strict=True):
            x, residual = norm(part(x), residual)
        return x @ self.embedding.weight.T

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean over all tokens but the first, in nats."""
        logits = self(ids[:, :-1]).flatten(0, 1)
        return mt.cross_entropy(logits, ids[:, 1:].flatten(), reduction="mean")

    @torch.no_grad()
    def sample(
        self, ids: list[int], stop: int, most: int, temperature: float, generator: torch.Generator
    ) -> list[int]:
        """Go on after ids until stop, or until there are most of them."""
        ids = list(ids)
        while len(ids) < most:
            logits = self(torch.tensor([ids]))[0, -1]
            chances = mt.softmax(logits / temperature)
            ids.append(int(torch.multinomial(chances, 1, generator=generator)))
            if ids[-1] == stop:
                break
        return ids

    def save(self, path: Path) -> None:
        torch.save({"config": asdict(self.config), "weights": self.state_dict()}, path)

    @classmethod
    def load(cls, path: Path) -> ProteinModel:
        kept = torch.load(path, weights_only=True)
        model = cls(Config(**kept["config"]))
        model.load_state_dict(kept["weights"])
        return model

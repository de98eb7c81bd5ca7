# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with paged KV caches, checked against a forward without any cache.

    python examples/serve_paged.py --sequences 8 --new 64

qk_norm_rope normalises and rotates the heads of q and k and writes k and v straight into pages that
lie in no order, in one launch. Attention is torch's SDPA over the gathered pages. On a GPU a step,
with the choice of the next token, is one CUDA graph that is replayed. The model is small and has
random weights; what counts is that both ways choose the same tokens. Needs torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from progress import progress
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import membound.torch as mt

VOCAB, WIDTH, LAYERS, BLOCK = 512, 256, 4, 16  # BLOCK: tokens of a page
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 32


class Pages:
    """Caches of all layers, and which pages belong to which sequence."""

    def __init__(self, sequences: int, longest: int, device: str):
        each = -(-longest // BLOCK)
        shape = (LAYERS, sequences * each, BLOCK, KV_HEADS, HEAD_DIM)
        self.keys, self.values = torch.zeros(2, *shape, device=device)
        self.table = torch.randperm(sequences * each, device=device).view(sequences, each)

    def slots(self, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at positions (sequences, new) are kept."""
        return self.table.gather(1, positions // BLOCK) * BLOCK + positions % BLOCK

    def gathered(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The pages of each sequence in order: (sequences, heads, tokens, head_dim)."""
        caches = self.keys[layer], self.values[layer]
        keys, values = (cache[self.table].flatten(1, 2).transpose(1, 2) for cache in caches)
        return keys, values


class Layer(nn.Module):
    def __init__(self, index: int):
        super().__init__()
        self.index = index
        self.norm, self.mlp_norm = mt.RMSNorm(WIDTH), mt.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.q_weight = nn.Parameter(torch.rand(HEAD_DIM) + 0.5)
        self.k_weight = nn.Parameter(torch.rand(HEAD_DIM) + 0.5)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def attend(
        self, x: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, pages: Pages | None
    ) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, HEAD_DIM))
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=2)
        how = {"freqs": freqs, "position_ids": positions}
        if pages is None:
            q, k = mt.qk_norm_rope(q, k, self.q_weight, self.k_weight, **how)
            k, v, seen = k.transpose(1, 2), v.transpose(1, 2), {"is_causal": True}
        else:
            caches = {"key_cache": pages.keys[self.index], "value_cache": pages.values[self.index]}
            slots = pages.slots(positions)
            q = mt.qk_norm_rope(
                q, k, self.q_weight, self.k_weight, v=v, slot_mapping=slots, **caches, **how
            )
            k, v = pages.gathered(self.index)
            tokens = torch.arange(k.shape[2], device=x.device)
            seen = {"attn_mask": (tokens <= positions[..., None])[:, None]}
        y = scaled_dot_product_attention(q.transpose(1, 2), k, v, enable_gqa=True, **seen)
        return self.out(y.transpose(1, 2).flatten(-2))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, *how: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = (self.norm(x), x) if residual is None else self.norm(x, residual)
        x, residual = self.mlp_norm(self.attend(x, *how), residual)
        return self.down(mt.silu_and_mul(self.gate_up(x))), residual


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = mt.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer(index) for index in range(LAYERS))
        self.norm, self.head = mt.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        inverse = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("freqs", inverse, persistent=False)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, pages: Pages | None = None
    ) -> torch.Tensor:
        """The token after the last one of ids (sequences, new)."""
        x, residual = self.embedding(ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, self.freqs, positions, pages)
        x, _ = self.norm(x, residual)
        return self.head(x[:, -1]).argmax(-1, keepdim=True)


def decode_paged(model: Model, prompt: torch.Tensor, new: int) -> tuple[torch.Tensor, float]:
    """Return prompt and new tokens, and the seconds of all steps after the prompt."""
    count, length = prompt.shape
    device = prompt.device
    pages = Pages(count, length + new, device.type)
    tokens = torch.cat((prompt, prompt.new_zeros(count, new)), 1)
    at = torch.full((count, 1), length, device=device)  # of the token that was chosen last
    places = torch.arange(length, device=device).expand(count, -1)
    tokens[:, length] = model(prompt, places, pages).squeeze(1)

    def step() -> None:
        """Read and write the tensors above alone, so that a graph of it can be replayed."""
        tokens.scatter_(1, at + 1, model(tokens.gather(1, at), at, pages))
        at.add_(1)

    replay = captured(step, (tokens, at)) if device.type == "cuda" else step
    finish(device)
    start = time.perf_counter()
    for _ in progress(range(new - 1), desc="paged"):
        replay()
    finish(device)
    return tokens, time.perf_counter() - start


def captured(step: Callable[[], None], state: tuple[torch.Tensor, ...]) -> Callable[[], None]:
    """A CUDA graph of the step; what warming up changed is put back."""
    kept = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, value in zip(state, kept, strict=True):
        tensor.copy_(value)
    return graph.replay


def decode_uncached(model: Model, prompt: torch.Tensor, new: int) -> tuple[torch.Tensor, float]:
    """The same by a forward over everything so far for each token."""
    tokens = prompt
    finish(prompt.device)
    start = time.perf_counter()
    for _ in progress(range(new), desc="without a cache"):
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        tokens = torch.cat((tokens, model(tokens, positions)), 1)
    finish(prompt.device)
    return tokens, time.perf_counter() - start


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=24, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to decode, at least 2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Model().to(options.device).eval()
    prompt = torch.randint(VOCAB, (options.sequences, options.prompt), device=options.device)
    paged, paged_seconds = decode_paged(model, prompt, options.new)
    right, seconds = decode_uncached(model, prompt, options.new)
    steps = options.sequences * (options.new - 1)  # the first token comes from the prompt
    how = "CUDA graph" if options.device == "cuda" else "eager"
    print(f"paged caches, {how}: {steps / paged_seconds:,.0f} tokens/s")
    print(f"without a cache: {options.sequences * options.new / seconds:,.0f} tokens/s")
    same = int((paged == right).all(1).sum())
    print(f"sequences with the same tokens: {same} of {options.sequences}")
    print(f"the first one: {paged[0, options.prompt :].tolist()[:12]}...")
    return 0 if same == options.sequences else 1


if __name__ == "__main__":
    raise SystemExit(main())

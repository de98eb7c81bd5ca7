# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train a patched model in parallel; run by test_torch_distributed.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from test_torch_patch import MODELS, build
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import membound.torch as mt


def by_layer(model: Any, mesh: Any) -> Any:
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_module(model: Any, mesh: Any) -> Any:
    """Also what patch replaces is wrapped: its class becomes one of FSDP2's."""
    for layer in model.model.layers:
        fully_shard(layer.input_layernorm, mesh=mesh)
        fully_shard(layer.mlp, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(model.model.embed_tokens, mesh=mesh)
    fully_shard(model.model, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compiled_layers(model: Any, mesh: Any) -> Any:
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    return by_layer(model, mesh)


def replicated(model: Any, _: Any) -> Any:
    return DistributedDataParallel(model)


def step(model: Any, ids: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    slopes = [p.grad for p in model.parameters()]
    return loss.detach(), [s.full_tensor() if hasattr(s, "full_tensor") else s for s in slopes]


def check(wrap: Any, mesh: Any, name: str, batches: Any, first: bool) -> None:
    plain = build(name, torch.float32, 1, tie_word_embeddings=False).to(batches[0].device)
    steps = [step(plain, ids) for ids in batches]
    slopes = [sum(each) / len(batches) for each in zip(*(s for _, s in steps), strict=True)]
    model = copy.deepcopy(plain)
    report = mt.patch(model) if first else None
    model = wrap(model, mesh)
    report = report or mt.patch(model)
    assert report.replaced == MODELS[name][1], str(report)
    assert mt.patch(model).replaced == 0
    loss, mine = step(model, batches[dist.get_rank()])
    torch.testing.assert_close(loss, steps[dist.get_rank()][0], rtol=1e-5, atol=0)
    largest = max(s.abs().max().item() for s in slopes)
    for got, right in zip(mine, slopes, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5 * largest)
    if first and wrap is not replicated:  # the classes of FSDP2 are on top of ours
        with pytest.raises(RuntimeError, match="was wrapped after patch"):
            mt.unpatch(model)
    else:
        assert mt.unpatch(model) == MODELS[name][1]


def checks(rank: int, count: int, device: str) -> None:
    mesh = init_device_mesh(device, (count,))
    batches = torch.randint(3, 128, (count, 2, 9)).to(device)
    for first in (True, False):
        for wrap in (by_layer, by_module, compiled_layers, replicated):
            check(wrap, mesh, "Llama", batches, first)
        check(by_module, mesh, "Gemma3Text", batches, first)


if __name__ == "__main__":
    ranks.run(checks)

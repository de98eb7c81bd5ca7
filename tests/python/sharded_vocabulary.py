# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One of several processes whose DTensors share a vocabulary; run by test_torch_distributed.py."""

from __future__ import annotations

import re
from typing import Any

import last_layers
import pytest
import ranks
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import membound.torch as mt

WIDTH = 6
REDUCTIONS = "mean", "none", "sum"


def collectives(moved: Any) -> dict[str, int]:
    return {str(name).rpartition(".")[2]: n for name, n in moved.get_comm_counts().items() if n}


def drawn(vocab: int) -> list[Any]:
    shapes = (4, 6, WIDTH), (vocab, WIDTH), (vocab,)
    made = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    labels = torch.randint(0, vocab, (4, 6))
    return [*(one.requires_grad_() for one in made), labels]


def options_of(kind: str, vocab: int, labels: Any) -> dict[str, Any]:
    options = dict(last_layers.LOSSES[kind])
    if "class_weight" in options:
        options["class_weight"] = torch.linspace(0.5, 2.0, vocab, dtype=torch.float64)
    labels[0, 3:5] = options.get("ignore_index", -100)
    return options


def placed(mesh: Any, tensors: Any, lies: Any) -> list[Any]:
    parts = [distribute_tensor(t.detach(), mesh, lie) for t, lie in zip(tensors, lies, strict=True)]
    return [p.requires_grad_() if p.is_floating_point() else p for p in parts]


def full(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check_all(what: Any, found: Any, right: Any, gradients: Any, slopes: Any) -> None:
    for mine, theirs in zip((*found, *gradients), (*right, *slopes), strict=True):
        torch.testing.assert_close(full(mine), theirs, msg=lambda text: f"{what}: {text}")


def check_layer(mesh: Any, vocab: int, kind: str, reduction: str, rows: Any) -> None:
    """A last layer: one all-reduce of statistics forward, none of its own backward."""
    *leaves, labels = drawn(vocab)
    options = options_of(kind, vocab, labels)
    right = last_layers.loss(*leaves, labels, reduction, **options)
    slope = torch.randn(right.shape, dtype=torch.float64)
    slopes = torch.autograd.grad(right, leaves, slope)
    last = mesh.ndim - 1
    of_layer = [Replicate()] * last + [Shard(0)]
    parts = placed(mesh, leaves, [rows, of_layer, of_layer])
    labels = distribute_tensor(labels, mesh, rows)
    with CommDebugMode() as forward:
        found = mt.linear_cross_entropy(
            parts[0], parts[1], labels, parts[2], reduction=reduction, chunk_rows=5, **options
        )
    what = vocab, kind, reduction, rows, collectives(forward)
    assert sum(collectives(forward).values()) == 1, what
    assert "all_reduce" in next(iter(collectives(forward))), what
    with CommDebugMode() as backward:
        total = (found * distribute_tensor(slope, mesh, found.placements)).sum()
        if reduction != "none":
            total = found * slope
        gradients = torch.autograd.grad(total, parts)
    assert not any("gather" in name for name in collectives(backward)), collectives(backward)
    assert gradients[1].placements[last] == Shard(0)
    check_all(what, [found], [right], gradients, slopes)


def check_logits(mesh: Any, vocab: int, kind: str, reduction: str, rows: Any) -> None:
    """Logits whose columns are sharded: one all-reduce forward, nothing backward."""
    *leaves, labels = drawn(vocab)
    options = options_of(kind, vocab, labels)
    logits = torch.nn.functional.linear(*leaves).detach().requires_grad_()
    weight = options.pop("class_weight", None)
    right = mt.cross_entropy(logits, labels, weight, reduction=reduction, **options)
    slope = torch.randn(right.shape, dtype=torch.float64)
    slopes = torch.autograd.grad(right, logits, slope)
    (part,) = placed(mesh, [logits], [[*rows[:-1], Shard(2)]])
    labels = distribute_tensor(labels, mesh, rows)
    if weight is not None:
        weight = distribute_tensor(weight, mesh, [Replicate()] * mesh.ndim)
    with CommDebugMode() as forward:
        found = mt.cross_entropy(part, labels, weight, reduction=reduction, **options)
    what = vocab, kind, reduction, rows, collectives(forward)
    assert all("all_reduce" in name for name in collectives(forward)), what
    if all(p.is_replicate() for p in rows):
        assert sum(collectives(forward).values()) == 1, what
    with CommDebugMode() as backward:
        total = (found * distribute_tensor(slope, mesh, found.placements)).sum()
        if reduction != "none":
            total = found * slope
        gradients = torch.autograd.grad(total, [part])
    assert not any("gather" in name for name in collectives(backward)), collectives(backward)
    assert gradients[0].placements == part.placements
    check_all(what, [found], [right], gradients, slopes)


def check_log_probs(mesh: Any, vocab: int, options: dict[str, Any]) -> None:
    """With entropies: still one all-reduce forward."""
    *leaves, labels = drawn(vocab)
    labels[0, 3:5] = -100
    right = last_layers.log_probs(*leaves, labels, **options)
    slope = torch.randn((2, *labels.shape), dtype=torch.float64).unbind()
    slopes = torch.autograd.grad(right, leaves, slope)
    parts = placed(mesh, leaves, [[Replicate()], [Shard(0)], [Shard(0)]])
    with CommDebugMode() as forward:
        found = mt.linear_log_probs(
            parts[0], parts[1], labels, parts[2], entropy=True, chunk_rows=5, **options
        )
    assert list(collectives(forward).values()) == [1], collectives(forward)
    ways = [distribute_tensor(one, mesh, [Replicate()]) for one in slope]
    gradients = torch.autograd.grad(found, parts, ways)
    check_all((vocab, options), found, right, gradients, slopes)


def check_rare_rows(mesh: Any) -> None:
    """Large logits in float32, labels that are no column, and rows to ignore without numbers."""
    logits = (1e4 + torch.randn(4, 11)).requires_grad_()
    labels = torch.tensor([2, 10, 11, -100])
    with torch.no_grad():
        logits[3] = torch.nan
    right = mt.cross_entropy(logits, labels)
    (part,) = placed(mesh, [logits], [[Shard(1)]])
    found = mt.cross_entropy(part, labels)
    (slope,) = torch.autograd.grad(right.sum(), logits)
    (gradient,) = torch.autograd.grad(found.sum(), part)
    for mine, theirs in ((found, right), (gradient, slope)):
        torch.testing.assert_close(full(mine), theirs, rtol=2e-6, atol=1e-6, equal_nan=True)
    assert right.isnan().tolist() == [False, False, True, False]


def check_row_shards(mesh: Any) -> None:
    """Rows that are sharded, with the whole layer on every rank: nothing is gathered."""
    *leaves, labels = drawn(11)
    for reduction in REDUCTIONS:
        for axis in range(2):
            right = last_layers.loss(*leaves, labels, reduction)
            slopes = torch.autograd.grad(right.sum(), leaves)
            parts = placed(mesh, leaves, [[Shard(axis)], [Replicate()], [Replicate()]])
            own = distribute_tensor(labels, mesh, [Shard(axis)])
            with CommDebugMode() as moved:
                found = mt.linear_cross_entropy(
                    parts[0], parts[1], own, parts[2], reduction=reduction, chunk_rows=5
                )
                gradients = torch.autograd.grad(found.sum(), parts)
            assert not any("gather" in name for name in collectives(moved)), collectives(moved)
            check_all((reduction, axis), [found], [right], gradients, slopes)


def check_column_parallel_layer(mesh: Any) -> None:
    """A last layer as torch's ColwiseParallel places it, behind layers that are not sharded."""
    layer = torch.nn.Linear(WIDTH, 11, dtype=torch.float64)
    x, _, _, labels = drawn(11)
    right = last_layers.loss(x, layer.weight, layer.bias, labels, "mean")
    leaves = [x, layer.weight, layer.bias]
    slopes = torch.autograd.grad(right, leaves)
    layer = parallelize_module(layer, mesh, ColwiseParallel())
    same = DTensor.from_local(x, mesh, [Replicate()])
    found = mt.linear_cross_entropy(same, layer.weight, labels, layer.bias)
    gradients = torch.autograd.grad(found, [x, layer.weight, layer.bias])
    check_all("a layer", [found], [right], gradients, slopes)


def check_embedding(mesh: Any, vocab: int, rows: Any, positions: bool, **options: Any) -> None:
    """A table whose vocabulary lies on the last mesh axis, as torch's RowwiseParallel places it."""
    tables = [torch.randn(n, WIDTH, dtype=torch.float64).requires_grad_() for n in (vocab, 7)]
    tables = tables[: 1 + positions]
    ids = torch.randint(vocab, (4, 6))
    ids[0, 0] = 3
    right = mt.embedding(ids, tables[0], position_weight=(*tables, None)[1], **options)
    factor = torch.randn_like(right)
    slopes = torch.autograd.grad((right * factor).sum(), tables)
    whole = [Replicate()] * mesh.ndim
    lies = rows, [*whole[1:], Shard(0)], whole, whole
    parts = placed(mesh, [ids, *tables, factor], [*lies[: 2 + positions], whole])
    with CommDebugMode() as moved:
        found = mt.embedding(parts[0], parts[1], position_weight=(*parts[1:-1], None)[1], **options)
    assert not moved.get_total_counts(), collectives(moved)
    gradients = torch.autograd.grad((found * parts[-1]).sum(), parts[1:-1])
    assert gradients[0].placements == parts[1].placements
    check_all((vocab, positions, options), [found], [right], gradients, slopes)


def check_compiled(mesh: Any) -> None:
    """Around a sharded vocabulary the graph ends, and what is computed is the same."""
    *leaves, labels = drawn(12)
    right = last_layers.loss(*leaves, labels, "mean")
    parts = placed(mesh, leaves, [[Replicate()], [Shard(0)], [Shard(0)]])
    step = torch.compile(
        lambda x, w, b: mt.linear_cross_entropy(x, w, labels, b), backend="aot_eager"
    )
    torch.testing.assert_close(full(step(*parts)), right)


def check_errors(mesh: Any) -> None:
    *leaves, labels = drawn(12)
    x, weight, bias = placed(mesh, leaves, [[Replicate()], [Shard(0)], [Shard(0)]])
    text = "linear_cross_entropy: argument 'validate' must be False where the vocabulary is sharded"
    with pytest.raises(ValueError, match=re.escape(text)):
        mt.linear_cross_entropy(x, weight, labels, bias, validate=True)
    for call in (mt.linear_cross_entropy, mt.linear_log_probs):  # as with weights of FSDP2
        with pytest.raises(TypeError, match=f"^{call.__name__}: argument 'x' must be a DTensor"):
            call(leaves[0], weight, labels)
    with pytest.raises(ValueError, match=r"^linear_log_probs: argument 'labels' must"):
        mt.linear_log_probs(x, weight, labels[0], bias)
    with pytest.raises(TypeError, match=r"^embedding: argument 'ids' must be a DTensor"):
        mt.embedding(labels, weight)
    outside = DTensor.from_local(labels + 12, mesh, [Replicate()])
    held = "hold numbers from 0 to" if mesh.device_type == "cpu" else "be False for arrays on a GPU"
    with pytest.raises(ValueError, match=rf"^embedding: argument '(ids|validate)' must {held}"):
        mt.embedding(outside, weight, validate=True)


def checks(rank: int, count: int, device: str) -> None:
    if device == "cuda":
        torch.set_default_device(f"cuda:{rank}")
    mesh = init_device_mesh(device, (count,))
    for at, kind in enumerate(last_layers.LOSSES):
        for vocab in (12, 11, 5):  # of 5 columns the last of four ranks has none
            reduction = REDUCTIONS[(at + vocab) % 3]
            check_layer(mesh, vocab, kind, reduction, [Replicate()])
            check_logits(mesh, vocab, kind, reduction, [Replicate()])
    for options in ({}, {"temperature": 0.7, "softcap": 2.0}):
        for vocab in (11, 5):
            check_log_probs(mesh, vocab, options)
    for vocab in (12, 11, 5):
        validate = device == "cpu"  # GPUs are not waited for
        check_embedding(mesh, vocab, [Replicate()], False, padding_idx=3, validate=validate)
        check_embedding(mesh, vocab, [Replicate()], True, scale=0.5)
    check_rare_rows(mesh)
    check_row_shards(mesh)
    check_column_parallel_layer(mesh)
    check_compiled(mesh)
    check_errors(mesh)
    if count == 4:
        grid = init_device_mesh(device, (2, 2))
        for axis in range(2):
            check_layer(grid, 11, "all", "none", [Shard(axis), Replicate()])
            check_logits(grid, 11, "all", "none", [Shard(axis), Replicate()])
            check_logits(grid, 11, "class weights", "mean", [Shard(axis), Replicate()])
            check_embedding(grid, 11, [Shard(axis), Replicate()], axis == 0)


if __name__ == "__main__":
    ranks.run(checks)

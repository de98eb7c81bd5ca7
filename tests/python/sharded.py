# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that hold a part of each tensor: run by test_torch_distributed.py."""

from __future__ import annotations

import copy
import functools
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import membound
import membound.torch as mt

X, W = (4, 6, 8), (8,)
CALLS = {
    "rms_norm": (X, W),
    "add_rms_norm": (X, X, W),
    "rms_norm_gated": (X, X, W),
    "layer_norm": (X, W, W),
    "add_layer_norm": (X, X, W, W),
    "silu_and_mul": (X, X),
    "relu2": (X,),
}
MATRICES = ("all_gather", "all_to_all", "reduce_scatter")  # what would move whole activations


def first(results: Any) -> Any:
    return results[0] if isinstance(results, tuple) else results


def gathers(mode: CommDebugMode) -> list[str]:
    called = [str(op) for op, count in mode.get_comm_counts().items() if count]
    return [op for op in called if any(word in op for word in MATRICES)]


def check_rows(mesh: Any, op: str, placement: Any, home: Any) -> None:
    """Results, gradients and what moved, of tensors whose rows lie as said."""
    function = getattr(home, op)
    whole = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in CALLS[op]]
    right = first(function(*whole))
    slopes = torch.autograd.grad(right.square().sum(), whole)
    parts = [
        distribute_tensor(t.detach(), mesh, [placement if t.dim() > 1 else Replicate()])
        for t in whole
    ]
    parts = [part.requires_grad_() for part in parts]
    with CommDebugMode() as moved:
        found = first(function(*parts))
        gradients = torch.autograd.grad(found.square().sum(), parts)
    assert gathers(moved) == [], (op, placement, moved.get_comm_counts())
    assert found.placements == (placement,)
    torch.testing.assert_close(found.full_tensor(), right)
    for mine, theirs, part in zip(gradients, slopes, parts, strict=True):
        if part.dim() > 1:
            assert mine.placements == part.placements
        torch.testing.assert_close(mine.full_tensor(), theirs)


def check_placed(mesh: Any, name: str, call: Any, tensors: list[Any], axes: list[Any]) -> None:
    """The same of a call, where a tensor's axis says how it lies; None: replicated."""

    def total(found: Any) -> Any:
        found = found if isinstance(found, tuple) else (found,)
        return sum(one.square().sum() for one in found)

    whole = [t.requires_grad_() if t.is_floating_point() else t for t in tensors]
    slopes = torch.autograd.grad(
        total(call(*whole)), [t for t in whole if t.requires_grad], allow_unused=True
    )
    parts = [
        distribute_tensor(t.detach(), mesh, [Replicate() if axis is None else Shard(axis)])
        for t, axis in zip(tensors, axes, strict=True)
    ]
    parts = [p.requires_grad_() if p.is_floating_point() else p for p in parts]
    with CommDebugMode() as moved:
        found = call(*parts)
        gradients = torch.autograd.grad(
            total(found), [p for p in parts if p.requires_grad], allow_unused=True
        )
    assert gathers(moved) == [], (name, axes, moved.get_comm_counts())
    torch.testing.assert_close(total(found).full_tensor(), total(call(*whole)))
    for mine, theirs in zip(gradients, slopes, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine.full_tensor(), theirs)


def check_other_ops(mesh: Any) -> None:
    def drawn(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float64)

    def softmax(x: Any, mask: Any) -> Any:
        return mt.softmax(x, mask, scale=0.5)

    for axis in range(2):
        check_placed(mesh, "softmax", mt.softmax, [drawn(4, 6, 8)], [axis])
        check_placed(
            mesh, "masked", softmax, [drawn(4, 6, 8), drawn(6, 8)], [axis, [None, 0][axis]]
        )
        check_placed(
            mesh, "masked", softmax, [drawn(4, 6, 8), drawn(4, 1, 8)], [axis, [0, None][axis]]
        )
        ids = torch.randint(16, (4, 6))
        check_placed(mesh, "embedding", mt.embedding, [ids, drawn(16, 8)], [axis, None])
        labels = torch.randint(8, (4, 6))
        check_placed(mesh, "loss", mt.cross_entropy, [drawn(4, 6, 8), labels], [axis, axis])
    causal = functools.partial(mt.softmax, causal_offset=0)
    check_placed(mesh, "causal", causal, [drawn(4, 6, 6)], [0])

    def positions(ids: Any, weight: Any, position_weight: Any) -> Any:
        return mt.embedding(ids, weight, position_weight=position_weight)

    check_placed(mesh, "positions", positions, [ids, drawn(16, 8), drawn(6, 8)], [0, None, None])


def check_rotary(mesh: Any) -> None:
    cos, sin = (torch.randn(32, 4, dtype=torch.float64) for _ in range(2))
    shapes = {"bshd": (2, 6, 4, 8), "sbhd": (6, 2, 4, 8), "bhsd": (2, 4, 6, 8), "thd": (6, 4, 8)}
    for layout, shape in shapes.items():
        for letter in "bh" if "b" in layout else "h":
            axis = layout.index(letter)
            ids = torch.randint(32, (2, 6) if "b" in layout else (6,))
            of_ids = 0 if letter == "b" else None

            def rope(q: Any, k: Any, c: Any, s: Any, ids: Any, layout: str = layout) -> Any:
                return mt.rope(q, k, c.detach(), s.detach(), position_ids=ids, layout=layout)

            def normed(
                q: Any, k: Any, w: Any, c: Any, s: Any, ids: Any, layout: str = layout
            ) -> Any:
                return mt.qk_norm_rope(
                    q, k, w, w, c.detach(), s.detach(), position_ids=ids, layout=layout
                )

            q, k = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
            tables = [cos, sin, ids]
            check_placed(mesh, layout, rope, [q, k, *tables], [axis, axis, None, None, of_ids])
            weight = torch.randn(8, dtype=torch.float64)
            check_placed(
                mesh,
                layout,
                normed,
                [q, k, weight, *tables],
                [axis, axis, None, None, None, of_ids],
            )


def check_compiled_and_columns(mesh: Any) -> None:
    x, weight = torch.randn(X), torch.randn(W)
    right = mt.rms_norm(x, weight)
    weight = distribute_tensor(weight, mesh, [Replicate()])
    compiled = torch.compile(mt.rms_norm, fullgraph=True, backend="aot_eager")
    rows = distribute_tensor(x, mesh, [Shard(0)])
    torch.testing.assert_close(compiled(rows, weight).full_tensor(), right)
    columns = distribute_tensor(x, mesh, [Shard(2)])  # gathered, and right
    torch.testing.assert_close(mt.rms_norm(columns, weight).full_tensor(), right)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = mt.RMSNorm(8)
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(16, 8)
        self.last = mt.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.last(x + self.down(mt.silu_and_mul(self.up(self.norm(x)))))


def check_data_parallel(mesh: Any, rank: int) -> None:
    """FSDP2 and DDP give the gradients of one process with both batches."""
    alone = Block()
    batches = torch.randn(2, 4, 8)
    sum(alone(batch).square().mean() for batch in batches).div(2).backward()
    for wrap in (lambda m: fully_shard(m, mesh=mesh), DistributedDataParallel):
        model = wrap(copy.deepcopy(alone))
        model.zero_grad()
        model(batches[rank]).square().mean().backward()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            gradient = mine.grad
            if hasattr(gradient, "full_tensor"):
                gradient = gradient.full_tensor()
            torch.testing.assert_close(gradient, theirs.grad)


def main() -> None:
    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(int(sys.argv[3]))
    for op in CALLS:
        for placement in (Shard(0), Shard(1), Replicate()):
            check_rows(mesh, op, placement, mt)
        check_rows(mesh, op, Shard(0), membound)
    check_other_ops(mesh)
    check_rotary(mesh)
    check_compiled_and_columns(mesh)
    check_data_parallel(mesh, rank)
    dist.destroy_process_group()
    print("all right")


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that each hold a shard of every tensor; run by test_torch_distributed.py."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import pytest
import ranks
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
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
MATRICES = ("all_gather", "all_to_all", "reduce_scatter")  # these move whole activations


def first(results: Any) -> Any:
    return results[0] if isinstance(results, tuple) else results


def gathers(mode: CommDebugMode) -> list[str]:
    called = [str(op) for op, count in mode.get_comm_counts().items() if count]
    return [op for op in called if any(word in op for word in MATRICES)]


def check_rows(mesh: Any, op: str, placement: Any, home: Any) -> None:
    """Check results, gradients and communication for tensors with the given row placements."""
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
    """The same for a call with each tensor sharded along an axis; None: replicated."""

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


def check_columns(mesh: Any, op: str, shape: tuple[int, ...], of_x: Any, of_weights: Any) -> None:
    """Sharded columns: one all-reduce forward, one backward, and no gather."""
    function = getattr(mt, op)
    options = {"eps": 1e-3, "weight_offset": 1.0}
    shapes = [shape[-1:] if len(s) == 1 else shape for s in CALLS[op]]
    whole = [torch.randn(s, dtype=torch.float64).add(1).requires_grad_() for s in shapes]
    dy = torch.randn(shape, dtype=torch.float64)
    right = first(function(*whole, **options))
    slopes = torch.autograd.grad(right, whole, dy)
    lies = [of_x if t.dim() > 1 else of_weights for t in whole]
    parts = [
        distribute_tensor(t.detach(), mesh, lie).requires_grad_()
        for t, lie in zip(whole, lies, strict=True)
    ]
    dy = distribute_tensor(dy, mesh, of_x)
    sharing = sum(p == Shard(len(shape) - 1) for p in of_x)
    with CommDebugMode() as forward:
        found = first(function(*parts, **options))
    with CommDebugMode() as backward:
        gradients = torch.autograd.grad(found, parts, dy)
    for moved in (forward, backward):
        counts = {str(k): v for k, v in moved.get_comm_counts().items() if v}
        assert moved.get_total_counts() == sharing, (op, shape, of_x, of_weights, counts)
        assert all("all_reduce" in name for name in counts), counts
    assert found.placements == tuple(of_x)
    assert found.shape == shape
    torch.testing.assert_close(found.full_tensor(), right)
    for mine, theirs, part in zip(gradients, slopes, parts, strict=True):
        assert mine.shape == part.shape
        if part.dim() > 1:
            assert mine.placements == part.placements
        torch.testing.assert_close(mine.full_tensor(), theirs)


def check_all_columns(mesh: Any) -> None:
    grid = init_device_mesh(mesh.device_type, (2, 1))
    for op in ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"):
        for cols in (8, 9, 1):  # the last: more ranks than columns
            for lie in (Shard(0), Replicate()):
                check_columns(mesh, op, (4, 6, cols), [Shard(2)], [lie])
        check_columns(mesh, op, (8,), [Shard(0)], [Shard(0)])
        check_columns(grid, op, (4, 6, 8), [Shard(0), Shard(2)], [Replicate(), Replicate()])
        check_columns(grid, op, (4, 6, 8), [Shard(2), Replicate()], [Shard(0), Replicate()])
        check_columns(grid, op, (4, 6, 8), [Shard(2), Shard(0)], [Replicate(), Replicate()])
    check_columns_in_16_bits(mesh)
    check_columns_without_weight(mesh)
    x = distribute_tensor(torch.ones(4, 8), mesh, [Shard(1)])
    for weight, error, text in (
        (torch.ones(8), TypeError, "rms_norm: argument 'weight' must be a DTensor on the mesh"),
        (distribute_tensor(torch.ones(9), mesh, [Replicate()]), ValueError, "must have shape (8,)"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            mt.rms_norm(x, weight)


def check_columns_without_weight(mesh: Any) -> None:
    """Without a weight weight_offset alone multiplies, forward and backward."""
    whole = torch.randn(4, 8, requires_grad=True)
    part = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
    dy = torch.randn(4, 8)  # the squares' sum would have a gradient of rounding errors
    factors = dy, distribute_tensor(dy, mesh, [Shard(1)])
    for norm in (mt.rms_norm, mt.layer_norm):
        results = [norm(x, None, weight_offset=2.0) for x in (whole, part)]
        slopes = [
            torch.autograd.grad((y * of).sum(), x)[0]
            for x, y, of in zip((whole, part), results, factors, strict=True)
        ]
        for right, got in (results, slopes):
            torch.testing.assert_close(got.full_tensor(), right)


def check_columns_in_16_bits(mesh: Any) -> None:
    """Within a unit of the kernel's result, with squares beyond float32 and both roundings."""
    x, weight = torch.randn(4, 64), torch.randn(64)
    x[1] *= 1e25
    x, weight = x.bfloat16(), weight.bfloat16()
    parts = [distribute_tensor(t, mesh, [Shard(t.dim() - 1)]) for t in (x, weight)]
    for rounding in ("once", "before_weight"):
        got = mt.rms_norm(*parts, rounding=rounding).full_tensor()
        right = mt.rms_norm(x, weight, rounding=rounding)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, right, rtol=2**-7, atol=0)
        same = (got == right).float().mean().item()
        assert same > 0.95, (rounding, same)


def check_compiled(mesh: Any) -> None:
    """Compiled graphs contain no gather either."""
    graphs: list[str] = []

    def kept(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=kept, bw_compiler=kept)
    compiled = torch.compile(mt.rms_norm, fullgraph=True, backend=backend)
    x, dy, weight = torch.randn(X), torch.randn(X), torch.randn(W)
    whole = [x.requires_grad_(), weight.requires_grad_()]
    right = mt.rms_norm(*whole)
    slopes = torch.autograd.grad(right, whole, dy)
    for axis, sums in ((0, 0), (2, 2)):
        graphs.clear()
        lies = ([Shard(axis)], [Replicate()])
        parts = [
            distribute_tensor(t.detach(), mesh, lie).requires_grad_()
            for t, lie in zip(whole, lies, strict=True)
        ]
        found = compiled(*parts)
        torch.testing.assert_close(found.full_tensor(), right)
        got = torch.autograd.grad(found, parts, distribute_tensor(dy, mesh, lies[0]))
        for mine, theirs in zip(got, slopes, strict=True):
            torch.testing.assert_close(mine.full_tensor(), theirs)
        assert len(graphs) == 2
        code = "".join(graphs)
        assert not any(word in code for word in MATRICES), code
        assert code.count("c10d_functional.all_reduce.") == sums, code


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = mt.RMSNorm(8)
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(16, 8)
        self.last = mt.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        x = x + self.down(mt.silu_and_mul(self.up(self.norm(x))))
        packed = self.up(self.norm(x))
        return self.last(x + mt.gated_linear(packed, None, self.down.weight, self.down.bias))


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


def checks(rank: int, count: int, device: str) -> None:
    if device == "cuda":
        torch.set_default_device(f"cuda:{rank}")
    mesh = init_device_mesh(device, (count,))
    check_compiled(mesh)  # before an eager call registers the operators with DTensor
    for op in CALLS:
        for placement in (Shard(0), Shard(1), Replicate()):
            check_rows(mesh, op, placement, mt)
        check_rows(mesh, op, Shard(0), membound)
    check_other_ops(mesh)
    check_rotary(mesh)
    check_all_columns(mesh)
    check_data_parallel(mesh, rank)


if __name__ == "__main__":
    ranks.run(checks)

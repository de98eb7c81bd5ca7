# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope with caches in torch: autograd, compiled code, CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")


def test_autograd_notices_the_writes():
    x = torch.ones(3, 1, 4)
    caches = [torch.zeros(8, 1, 4) for _ in range(2)]
    versions = [cache._version for cache in caches]
    membound.qk_norm_rope(
        x, x, freqs=torch.ones(2), layout="thd", v=x, key_cache=caches[0], value_cache=caches[1],
        slot_mapping=torch.arange(3),
    )  # fmt: skip
    assert all(c._version > before for c, before in zip(caches, versions, strict=True))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def in_torch(request, seed):
    """The arguments of a call in torch, and new caches for it."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(5, n, 64, generator=generator).to(request.param) for n in (4, 2, 2))
    weight = torch.randn(64, generator=generator).to(request.param)
    given = {
        "v": v, "freqs": torch.ones(32, device=request.param), "layout": "thd",
        "position_ids": torch.tensor([3, 9, 0, 1, 2], device=request.param),
        "slot_mapping": torch.tensor([7, -1, 4, 12, 30], device=request.param),
    }  # fmt: skip

    def caches() -> dict[str, Any]:
        return {name: torch.zeros(3, 2, 5, 64, device=request.param).transpose(1, 2)
                for name in ("key_cache", "value_cache")}  # fmt: skip

    return (q, k, weight, weight), given, caches


def test_operator_in_graphs(in_torch):
    """Compiled code writes to the given caches, and torch's own operator checks pass."""
    arguments, given, caches = in_torch
    right, found = caches(), caches()
    wanted = membound.qk_norm_rope(*arguments, **given, **right)

    def layer(arguments, cached):
        return mt.qk_norm_rope(*arguments, **given, **cached) * 1

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(arguments, found), wanted)
    assert all(torch.equal(found[name], right[name]) for name in right)
    both = torch.zeros(3, 5, 2, 2, 64, device=wanted.device)  # one array for keys and values
    compiled(arguments, dict(zip(right, both.unbind(2), strict=True)))
    assert all(map(torch.equal, both.unbind(2), right.values()))
    alone = caches()
    del alone["value_cache"]
    torch.compile(
        lambda: mt.qk_norm_rope(*arguments, **{**given, "v": None}, **alone),
        fullgraph=True, backend="aot_eager",
    )()  # fmt: skip
    assert torch.equal(alone["key_cache"], right["key_cache"])
    torch.compiler.reset()


def test_compiled_code_takes_out_but_no_k_out(in_torch):
    arguments, given, caches = in_torch
    right = membound.qk_norm_rope(*arguments, **given, **caches())
    torch.compiler.reset()
    compiled = torch.compile(mt.qk_norm_rope, fullgraph=True, backend="aot_eager")
    out = torch.empty_like(right)
    compiled(*arguments, **given, **caches(), out=out)
    assert torch.equal(out, right)
    with pytest.raises(Exception, match="argument 'k_out' must be None"):
        compiled(*arguments, **given, **caches(), k_out=torch.empty_like(arguments[1]))
    torch.compiler.reset()


def test_torch_checks_the_operator(opcheck, in_torch):
    (q, k, q_weight, k_weight), given, caches = in_torch
    cached = caches()
    options = (1e-6, 0.0, "once", 0, "thd", False, None, 0, None, False, 1.0, False, False)
    tables = (None, None, given["freqs"], given["position_ids"], None, None)
    opcheck(
        torch.ops.membound.qk_norm_rope_cached.default,
        (q, k, q_weight, k_weight, given["v"], cached["key_cache"], cached["value_cache"],
         given["slot_mapping"], *tables, *options),
    )  # fmt: skip


def test_no_gradient(in_torch):
    (q, *rest), given, caches = in_torch
    wanting = q.clone().requires_grad_()
    for function in (membound.qk_norm_rope, mt.qk_norm_rope):
        with pytest.raises(RuntimeError, match=r"^qk_norm_rope: argument 'q' requires grad"):
            function(wanting, *rest, **given, **caches())
        with torch.no_grad():
            function(wanting, *rest, **given, **caches())
    with pytest.raises(Exception, match=r"argument 'q' requires grad"):
        torch.compile(mt.qk_norm_rope, fullgraph=True, backend="aot_eager")(
            wanting, *rest, **given, **caches()
        )
    torch.compiler.reset()


@pytest.mark.gpu
def test_graph_capture(seed):
    torch.manual_seed(seed % 2**63)
    for dim in (128, 80):
        qkv = torch.randn(16, 8 + 2 + 2, dim, device="cuda")
        q, k, v = qkv.split([8, 2, 2], 1)
        freqs, ids = torch.ones(dim // 2, device="cuda"), torch.arange(16, device="cuda")
        caches = torch.zeros(2, 8, 4, 2, dim, device="cuda")
        out = torch.empty(16, 8, dim, device="cuda")

        def step(q=q, k=k, v=v, freqs=freqs, ids=ids, caches=caches, out=out):
            membound.qk_norm_rope(
                q, k, freqs=freqs, layout="thd", v=v, key_cache=caches[0], value_cache=caches[1],
                slot_mapping=ids, position_ids=ids, out=out,
            )  # fmt: skip

        step()
        wanted = [one.clone() for one in (out, caches)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        out.zero_()
        caches.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, wanted[0])
        assert torch.equal(caches, wanted[1])
        ids.copy_(torch.arange(15, -1, -1, device="cuda"))  # other slots, the same graph
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(caches[1].flatten(0, 1)[:16], v.flip(0))

# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding in CUDA graphs: replays have the bits of calls."""

from __future__ import annotations

import arrays
import pytest
import rotary

import membound


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["elements", "angles of elements"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_graph_capture_with_a_column_for_each_element(dtype, form):
    torch = arrays.torch_with_cuda()
    q, k = (torch.randn(4, 8, heads, 128, device="cuda").to(getattr(torch, dtype))
            for heads in (8, 2))  # fmt: skip
    weight = torch.rand(128, device="cuda")
    tables = rotary.table(form, rotary.frequencies(128), 16, "float32", False)
    given = {name: torch.tensor(table, device="cuda") for name, table in tables.items()}
    given["position_ids"] = torch.zeros(4, 8, dtype=torch.int64, device="cuda")
    out = [torch.empty_like(x) for x in (q, k, q, k)]

    def run():
        membound.rope(q, k, **given, out=out[0], k_out=out[1])
        membound.rope(q, k, **given, out=out[2], k_out=out[3], inverse=True)
        return membound.qk_norm_rope(q, k, weight, weight, **given)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        normed = run()
    given["position_ids"] += torch.arange(8, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    replayed = [x.clone() for x in (*out, *normed)]
    again = run()
    assert all(map(torch.equal, replayed, (*out, *again)))


@pytest.mark.gpu
def test_graph_capture():
    torch = arrays.torch_with_cuda()
    q, k = (torch.randn(4, 8, heads, 128, device="cuda") for heads in (8, 2))
    freqs = torch.tensor(rotary.frequencies(128), device="cuda")
    ids = torch.zeros(4, 8, dtype=torch.int64, device="cuda")
    out, k_out = torch.empty_like(q), torch.empty_like(k)
    membound.rope(q, k, freqs=freqs, position_ids=ids, out=out, k_out=k_out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        membound.rope(q, k, freqs=freqs, position_ids=ids, out=out, k_out=k_out)
        *gradients, dfreqs = membound.rope_backward(
            out, k_out, q=q, k=k, freqs=freqs, position_ids=ids
        )
    ids += torch.arange(8, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    wanted = membound.rope(q, k, freqs=freqs, position_ids=ids)
    assert all(map(torch.equal, (out, k_out), wanted))
    again = membound.rope_backward(*wanted, q=q, k=k, freqs=freqs, position_ids=ids)
    assert all(map(torch.equal, (*gradients, dfreqs), again))

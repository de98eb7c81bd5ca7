# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope, qk_norm_rope and its gradient on a GPU: unaligned heads of any width."""

from __future__ import annotations

import itertools

import arrays
import numpy as np
import pytest
import rotary

import membound

# head_dim, rotary_dim, rotary_offset: halves of 16-, 8-, 4- and 2-byte vectors; parts of heads
PARTS = ((128, 128, 0), (96, 96, 0), (72, 72, 0), (88, 88, 0), (40, 40, 0), (100, 100, 0))
PARTS += ((90, 90, 0), (96, 24, 0), (80, 20, 0), (64, 16, 48), (102, 34, 3), (260, 260, 0))
# Elements before the first head, and the gap after each head.
OFFSETS_AND_GAPS = ((1, 0), (2, 0), (4, 0), (0, 1), (0, 4), (0, 8), (3, 5))
DTYPES = ("bfloat16", "float16", "float32", "float64")


def at_offset(torch, x, shift, gap):
    """A copy of x that starts shift elements later, with gap elements after each head."""
    wide = (*x.shape[:-1], x.shape[-1] + gap)
    memory = torch.full((shift + int(np.prod(wide)),), float("nan"), device="cuda", dtype=x.dtype)
    there = memory[shift:].view(wide)[..., : x.shape[-1]]
    there.copy_(x)
    return there


def call_of(torch, op, dtype, part, interleaved, rng, form="halves"):
    """A function of arrays, and the arrays."""
    head_dim, rotary_dim, offset = part
    generator = torch.Generator("cuda").manual_seed(int(rng.integers(2**31)))
    kind = getattr(torch, dtype)

    def draw(*shape):
        return torch.randn(shape, generator=generator, device="cuda").to(kind)

    tables = rotary.table(form, rotary.frequencies(rotary_dim), 9, "float64", False)
    wide = torch.float64 if dtype == "float64" else torch.float32
    options = {name: torch.tensor(table, device="cuda", dtype=wide)
               for name, table in tables.items()}  # fmt: skip
    options |= {"interleaved": interleaved, "rotary_dim": rotary_dim, "rotary_offset": offset}
    q, k = draw(2, 9, 5, head_dim), draw(2, 9, 3, head_dim)
    if op == "rope":
        return lambda q, k, **out: membound.rope(q, k, **options, **out), [q, k]
    weights = {"q_weight": draw(head_dim), "k_weight": draw(3, head_dim)}
    if op == "qk_norm_rope":
        return lambda q, k, **out: membound.qk_norm_rope(q, k, **weights, **options, **out), [q, k]
    dq, dk = torch.empty_like(q).copy_(q.flip(0)), torch.empty_like(k).copy_(k.flip(0))
    return lambda dq, dk, q, k: membound.qk_norm_rope_backward(
        dq, dk, q, k, **weights, **options
    ), [dq, dk, q, k]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["rope", "qk_norm_rope", "qk_norm_rope_backward"])
def test_unaligned_heads_have_the_same_bits(op, dtype, seed):
    torch = arrays.torch_with_cuda()
    rng = np.random.default_rng(seed)
    forms = ("halves", "elements", "angles of elements")
    for part, interleaved, form in itertools.product(PARTS, (False, True), forms):
        call, given = call_of(torch, op, dtype, part, interleaved, rng, form)
        right = call(*given)
        for shift, gap in OFFSETS_AND_GAPS:
            there = [at_offset(torch, x, shift, gap) for x in given]
            for found, wanted in zip(call(*there), right, strict=True):
                assert torch.equal(found, wanted), (seed, part, interleaved, shift, gap)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["rope", "qk_norm_rope"])
def test_slices_of_one_array_in_place(op, dtype, seed):
    """q and k of a fused projection, whose values are unchanged."""
    torch = arrays.torch_with_cuda()
    rng = np.random.default_rng(seed)
    for part, interleaved in itertools.product(PARTS, (False, True)):
        call, (q, k) = call_of(torch, op, dtype, part, interleaved, rng)
        right = call(q, k)
        fused = torch.cat([q, k, k], 2)
        q_there, k_there = fused[:, :, :5], fused[:, :, 5:8]
        call(q_there, k_there, out=q_there, k_out=k_there)
        assert torch.equal(fused, torch.cat([*right, k], 2)), (seed, part, interleaved)
